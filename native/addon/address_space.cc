#include "addon/address_space.h"

#include <algorithm>
#include <iterator>

#include "cuda/native_status.h"

namespace cistern {

AddressSpace::AddressSpace(int owner, std::uint64_t begin, std::uint64_t size, std::uint64_t page)
    : device(owner), base(begin), bytes(size), page_bytes(page), highest_end_(begin) {
  holes_[base].end = base + bytes;
}

// The block that contains the address, or the end.
AddressSpace::Ranges::const_iterator AddressSpace::BlockAt(std::uint64_t address) const {
  auto block = blocks_.upper_bound(address);
  if (block == blocks_.begin()) return blocks_.end();
  --block;
  return address < block->second.end ? block : blocks_.end();
}

// Makes a block begin at a page boundary, if one contains it.
void AddressSpace::Cut(std::uint64_t at) {
  const auto found = BlockAt(at);
  if (found == blocks_.end() || found->first == at) return;
  const std::uint64_t begin = found->first;
  blocks_[at].end = found->second.end;
  blocks_[begin].end = at;
}

bool AddressSpace::Allocate(std::uint64_t size, std::uint64_t* address) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (size > bytes) return false;
  const std::uint64_t pages = PageEnd(base + size) - base;
  const auto hole = std::find_if(holes_.begin(), holes_.end(), [=](const auto& each) { return pages <= each.second.end - each.first; });
  if (hole == holes_.end()) return false;
  *address = hole->first;
  blocks_[*address].end = *address + size;
  auto rest = holes_.extract(hole);
  rest.key() += pages;
  highest_end_ = std::max(highest_end_, rest.key());
  if (rest.key() < rest.mapped().end) holes_.insert(std::move(rest));
  return true;
}

Status AddressSpace::CheckFree(std::uint64_t address, std::uint64_t size, std::uint64_t* right_bytes) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto first = BlockAt(address);
  if (first == blocks_.end()) return address >= base && address < highest_end_ && IsPageBoundary(address) ? kDoubleFree : kForeignPointer;
  if (!IsPageBoundary(address)) return kForeignPointer;
  *right_bytes = first->second.end - address;
  if (size == 0 || size > bytes) return kWrongSize;
  const std::uint64_t end = address + size;
  auto last = first;
  while (last->second.end < end) {
    const auto next = std::next(last);
    if (next == blocks_.end() || next->first != last->second.end) return kWrongSize;
    last = next;
  }
  return end == last->second.end || IsPageBoundary(end) ? kSuccess : kWrongSize;
}

AddressSpace::Range* AddressSpace::BeginFree(std::uint64_t address, std::uint64_t size) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::uint64_t end = address + size;
  Cut(address);
  Cut(end);
  auto range = blocks_.extract(address);
  blocks_.erase(blocks_.lower_bound(address), blocks_.lower_bound(end));
  const std::uint64_t page_end = PageEnd(end);
  range.mapped() = {page_end, address, page_end};
  return &freeing_.insert(std::move(range)).position->second;
}

AddressSpace::Range* AddressSpace::FindFreeing(std::uint64_t address) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = freeing_.find(address);
  return found != freeing_.end() ? &found->second : nullptr;
}

void AddressSpace::FinishFree(std::uint64_t address) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto freed = freeing_.extract(address);
  MarkAbsent(address, freed.mapped().end, false);
  const auto next = holes_.find(freed.mapped().end);
  if (next != holes_.end()) {
    freed.mapped().end = next->second.end;
    holes_.erase(next);
  }
  const auto after = holes_.lower_bound(address);
  if (after != holes_.begin() && std::prev(after)->second.end == address) {
    std::prev(after)->second.end = freed.mapped().end;
  } else {
    holes_.insert(std::move(freed));
  }
}

void AddressSpace::CancelFree(std::uint64_t address, std::uint64_t size) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto range = freeing_.extract(address);
  range.mapped().end = address + size;
  blocks_.insert(std::move(range));
}

std::vector<AddressSpace::Extent> AddressSpace::LiveExtents() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Extent> extents;
  for (const auto& [begin, block] : blocks_) {
    if (!extents.empty() && extents.back().second == begin) {
      extents.back().second = block.end;
    } else {
      extents.emplace_back(begin, block.end);
    }
  }
  return extents;
}

std::vector<AddressSpace::Extent> AddressSpace::PagesOfBlocks(bool are_absent) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Extent> runs;
  for (const auto& [block_begin, block] : blocks_) {
    VisitRuns(block_begin, PageEnd(block.end), [&](std::uint64_t begin, std::uint64_t end, bool is_absent) {
      if (is_absent != are_absent) return;
      if (!runs.empty() && runs.back().second == begin) {
        runs.back().second = end;
      } else {
        runs.emplace_back(begin, end);
      }
    });
  }
  return runs;
}

std::uint64_t AddressSpace::AbsentBytes() const {
  std::uint64_t absent = 0;
  for (const auto& [begin, end] : PagesOfBlocks(true)) absent += end - begin;
  return absent;
}

void AddressSpace::PrepareAbsence() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (absent_.empty()) absent_.resize(static_cast<std::size_t>(bytes / page_bytes));
}

void AddressSpace::SetAbsent(std::uint64_t begin, std::uint64_t end, bool are_absent) {
  const std::lock_guard<std::mutex> lock(mutex_);
  MarkAbsent(begin, end, are_absent);
}

void AddressSpace::MarkAbsent(std::uint64_t begin, std::uint64_t end, bool are_absent) {
  if (absent_.empty()) return;
  std::fill(absent_.begin() + static_cast<std::ptrdiff_t>(PageNumber(begin)),
            absent_.begin() + static_cast<std::ptrdiff_t>(PageNumber(end)), are_absent);
}

bool AddressSpace::HasMapped() const {
  bool has_mapped = false;
  ForEachMapped([&](std::uint64_t, std::uint64_t) { has_mapped = true; });
  return has_mapped;
}

}  // namespace cistern
