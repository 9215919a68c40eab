#include "addon/address_space.h"

#include <algorithm>
#include <iterator>

#include "cuda/native_status.h"

namespace cistern {

AddressSpace::AddressSpace(int owner, std::uint64_t begin, std::uint64_t size, std::uint64_t page)
    : device(owner), base(begin), bytes(size), page_bytes(page), highest_end_(begin) {
  holes_[base] = base + bytes;
}

// The block that contains the address, or the end.
AddressSpace::Ranges::const_iterator AddressSpace::BlockAt(std::uint64_t address) const {
  auto block = blocks_.upper_bound(address);
  if (block == blocks_.begin()) return blocks_.end();
  --block;
  return address < block->second ? block : blocks_.end();
}

// Makes a block begin at a page boundary, if one contains it.
void AddressSpace::Cut(std::uint64_t at) {
  const auto found = BlockAt(at);
  if (found == blocks_.end() || found->first == at) return;
  const std::uint64_t begin = found->first;
  blocks_[at] = found->second;
  blocks_[begin] = at;
}

bool AddressSpace::Allocate(std::uint64_t size, std::uint64_t* address) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (size > bytes) return false;
  const std::uint64_t pages = PageEnd(base + size) - base;
  const auto hole = std::find_if(holes_.begin(), holes_.end(), [=](const auto& each) { return pages <= each.second - each.first; });
  if (hole == holes_.end()) return false;
  *address = hole->first;
  blocks_[*address] = *address + size;
  auto rest = holes_.extract(hole);
  rest.key() += pages;
  highest_end_ = std::max(highest_end_, rest.key());
  if (rest.key() < rest.mapped()) holes_.insert(std::move(rest));
  return true;
}

Status AddressSpace::CheckFree(std::uint64_t address, std::uint64_t size, std::uint64_t* right_bytes) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto first = BlockAt(address);
  if (first == blocks_.end()) return address >= base && address < highest_end_ && IsPageBoundary(address) ? kDoubleFree : kForeignPointer;
  if (!IsPageBoundary(address)) return kForeignPointer;
  *right_bytes = first->second - address;
  if (size == 0 || size > bytes) return kWrongSize;
  const std::uint64_t end = address + size;
  auto last = first;
  while (last->second < end) {
    const auto next = std::next(last);
    if (next == blocks_.end() || next->first != last->second) return kWrongSize;
    last = next;
  }
  return end == last->second || IsPageBoundary(end) ? kSuccess : kWrongSize;
}

void AddressSpace::BeginFree(std::uint64_t address, std::uint64_t size) {
  const std::lock_guard<std::mutex> lock(mutex_);
  while (spares_.size() < 2 * (freeing_.size() + 1)) {
    Ranges spare{{0, 0}};
    spares_.push_back(spare.extract(spare.begin()));
  }
  const std::uint64_t end = address + size;
  Cut(address);
  Cut(end);
  auto range = blocks_.extract(address);
  blocks_.erase(blocks_.lower_bound(address), blocks_.lower_bound(end));
  range.mapped() = PageEnd(end);
  freeing_.insert(std::move(range));
}

// The piece that contains the address, or else the next one.
AddressSpace::Ranges::const_iterator AddressSpace::FirstPieceAfter(std::uint64_t address) const {
  const auto next = pieces_.upper_bound(address);
  return next != pieces_.begin() && address < std::prev(next)->second ? std::prev(next) : next;
}

// Whether all pages between two addresses are kept.
bool AddressSpace::IsKept(std::uint64_t begin, std::uint64_t end) const {
  while (begin < end) {
    const auto kept = kept_.find(begin);
    if (kept == kept_.end()) return false;
    begin = kept->second;
  }
  return true;
}

bool AddressSpace::NextToUnmap(std::uint64_t address, Extent* piece) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto freed = freeing_.find(address);
  if (freed == freeing_.end()) return false;  // it went with everything else
  for (auto each = FirstPieceAfter(address); each != pieces_.end() && each->first < freed->second; ++each) {
    if (!IsKept(each->first, address) || !IsKept(freed->second, each->second)) continue;
    *piece = *each;
    return true;
  }
  FinishFree(freeing_.extract(freed));
  return false;
}

// What is left of pieces in the range, at its ends, is kept.
void AddressSpace::FinishFree(Ranges::node_type freed) {
  const std::uint64_t begin = freed.key();
  const std::uint64_t end = freed.mapped();
  for (auto piece = FirstPieceAfter(begin); piece != pieces_.end() && piece->first < end; ++piece) {
    auto kept = std::move(spares_.back());
    spares_.pop_back();
    kept.key() = std::max(begin, piece->first);
    kept.mapped() = std::min(end, piece->second);
    if (kept.key() == begin) freed.key() = kept.mapped();
    if (kept.mapped() == end) freed.mapped() = kept.key();
    kept_.insert(std::move(kept));
  }
  if (freed.key() < freed.mapped()) InsertHole(std::move(freed));
}

void AddressSpace::InsertHole(Ranges::node_type range) {
  const std::uint64_t begin = range.key();
  const auto next = holes_.find(range.mapped());
  if (next != holes_.end()) {
    range.mapped() = next->second;
    holes_.erase(next);
  }
  const auto after = holes_.lower_bound(begin);
  if (after != holes_.begin() && std::prev(after)->second == begin) {
    std::prev(after)->second = range.mapped();
  } else {
    holes_.insert(std::move(range));
  }
}

void AddressSpace::CancelFree(std::uint64_t address, std::uint64_t size) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto range = freeing_.extract(address);
  range.mapped() = address + size;
  blocks_.insert(std::move(range));
}

void AddressSpace::AddPiece(std::uint64_t begin, std::uint64_t end) {
  const std::lock_guard<std::mutex> lock(mutex_);
  pieces_[begin] = end;
}

void AddressSpace::RemovePiece(std::uint64_t begin) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto piece = pieces_.find(begin);
  for (auto kept = kept_.lower_bound(begin); kept != kept_.end() && kept->first < piece->second;) {
    const auto next = std::next(kept);
    InsertHole(kept_.extract(kept));
    kept = next;
  }
  pieces_.erase(piece);
}

bool AddressSpace::HasMapped() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return !pieces_.empty();
}

bool AddressSpace::IsMapped(std::uint64_t address, std::uint64_t size) const {
  if (address - base >= bytes) return false;
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::uint64_t end = address + size;
  auto piece = FirstPieceAfter(address);
  for (std::uint64_t next = address; next < end; next = piece->second, ++piece) {
    if (piece == pieces_.end() || piece->first > next) return false;
    if (piece->second >= end) return true;
  }
  return false;
}

std::vector<AddressSpace::Extent> AddressSpace::PiecesWithin(const Extent& run) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return {pieces_.lower_bound(run.first), pieces_.lower_bound(run.second)};
}

std::vector<AddressSpace::Extent> AddressSpace::PiecesOfBlocks() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Extent> pieces;
  for (const auto& [begin, block_end] : blocks_) {
    const std::uint64_t end = PageEnd(block_end);
    for (auto piece = FirstPieceAfter(begin); piece != pieces_.end() && piece->first < end; ++piece) {
      if (pieces.empty() || pieces.back().first != piece->first) pieces.push_back(*piece);
    }
  }
  return pieces;
}

std::vector<AddressSpace::Extent> AddressSpace::LiveExtents() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Extent> extents;
  for (const auto& [begin, end] : blocks_) {
    if (!extents.empty() && extents.back().second == begin) {
      extents.back().second = end;
    } else {
      extents.emplace_back(begin, end);
    }
  }
  return extents;
}

std::vector<AddressSpace::Extent> AddressSpace::PagesOfBlocks(bool are_absent) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Extent> runs;
  const auto add = [&](std::uint64_t begin, std::uint64_t end) {
    if (begin >= end) return;
    if (!runs.empty() && runs.back().second == begin) {
      runs.back().second = end;
    } else {
      runs.emplace_back(begin, end);
    }
  };
  for (const auto& [block_begin, block_end] : blocks_) {
    std::uint64_t next = block_begin;
    const std::uint64_t end = PageEnd(block_end);
    for (auto piece = FirstPieceAfter(block_begin); piece != pieces_.end() && piece->first < end; ++piece) {
      const std::uint64_t begin = std::max(block_begin, piece->first);
      if (are_absent) {
        add(next, begin);
      } else {
        add(begin, std::min(end, piece->second));
      }
      next = std::min(end, piece->second);
    }
    if (are_absent) add(next, end);
  }
  return runs;
}

std::uint64_t AddressSpace::AbsentBytes() const {
  std::uint64_t absent = 0;
  for (const auto& [begin, end] : PagesOfBlocks(true)) absent += end - begin;
  return absent;
}

std::uint64_t AddressSpace::KeptBytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::uint64_t kept = 0;
  for (const auto& [begin, end] : kept_) kept += end - begin;
  return kept;
}

}  // namespace cistern
