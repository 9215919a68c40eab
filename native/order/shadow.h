// For every address of watched memory: whether it is live, and who used it last.
//
//     begin        begin            begin
//     | live       | live           | freed              (a cell ends where it says, cells do not overlap)
//     | written by 7, read by 9     | by the free 12
//
// A cell is split if a use ends within it, and merged with its neighbour again once both are equal.
#ifndef CISTERN_ORDER_SHADOW_H_
#define CISTERN_ORDER_SHADOW_H_

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "order/report.h"

namespace cistern::order {

struct Cell {
  std::uint64_t end = 0;
  bool is_grave = false;       // nothing is allocated here any more; `freed` is the free
  OperationPointer allocated;  // null: before everything
  // What the allocation had to come after. Memory that is never used may be freed in the order of
  // an event older than its allocation. The next owner then has to come after these operations, not
  // after the allocation.
  std::vector<OperationPointer> before_allocation;
  OperationPointer freed;  // null: live
  OperationPointer written;
  std::vector<OperationPointer> reads;  // since it was written; none of them is ordered after another

  bool SaysTheSameAs(const Cell& other) const {
    return is_grave == other.is_grave && allocated == other.allocated && before_allocation == other.before_allocation &&
           freed == other.freed && written == other.written && reads == other.reads;
  }

  // What the next owner has to come after.
  std::vector<OperationPointer> Latest() const {
    if (freed != nullptr) return {freed};
    if (written == nullptr && reads.empty()) return before_allocation;
    std::vector<OperationPointer> latest = reads;
    if (written != nullptr) latest.push_back(written);
    return latest;
  }
};

class Shadow {
 public:
  using Cells = std::map<std::uint64_t, Cell>;

  // Calls visit(begin, cell) for the cells of a range. The visitor may change everything in a cell
  // except its end.
  template <typename Visit>
  void ForEach(std::uint64_t begin, std::uint64_t end, Visit&& visit) {
    Cut(begin);
    Cut(end);
    const Cells::iterator last = cells_.lower_bound(end);
    for (Cells::iterator cell = cells_.lower_bound(begin); cell != last; ++cell) visit(cell->first, cell->second);
    Join(begin, end);
  }

  // Forgets a range.
  void Erase(std::uint64_t begin, std::uint64_t end) {
    Cut(begin);
    Cut(end);
    cells_.erase(cells_.lower_bound(begin), cells_.lower_bound(end));
  }

  // Replaces a range by one cell.
  void Replace(std::uint64_t begin, std::uint64_t end, Cell cell) {
    Erase(begin, end);
    cell.end = end;
    cells_.emplace(begin, std::move(cell));
  }

  // Removes a range and returns it.
  Cells Take(std::uint64_t begin, std::uint64_t end) {
    Cut(begin);
    Cut(end);
    Cells taken;
    const Cells::iterator last = cells_.lower_bound(end);
    for (Cells::iterator cell = cells_.lower_bound(begin); cell != last; cell = cells_.erase(cell)) {
      taken.emplace(cell->first, std::move(cell->second));
    }
    return taken;
  }
  // Puts back what Take returned; the range must be empty.
  void PutBack(Cells cells) { cells_.merge(cells); }

  std::size_t size() const { return cells_.size(); }
  void Clear() { cells_.clear(); }

 private:
  void Cut(std::uint64_t at) {
    Cells::iterator cell = cells_.upper_bound(at);
    if (cell == cells_.begin()) return;
    --cell;
    if (cell->first == at || cell->second.end <= at) return;
    Cell rest = cell->second;
    cells_.emplace_hint(std::next(cell), at, std::move(rest));
    cell->second.end = at;
  }

  void Join(std::uint64_t begin, std::uint64_t end) {
    Cells::iterator cell = cells_.lower_bound(begin);
    if (cell != cells_.begin()) --cell;
    while (cell != cells_.end()) {
      const Cells::iterator next = std::next(cell);
      if (next == cells_.end() || next->first > end) return;
      if (cell->second.end == next->first && cell->second.SaysTheSameAs(next->second)) {
        cell->second.end = next->second.end;
        cells_.erase(next);
      } else {
        cell = next;
      }
    }
  }

  Cells cells_;
};

}  // namespace cistern::order

#endif  // CISTERN_ORDER_SHADOW_H_
