#include "software/free_index.h"

namespace cistern::software {
namespace {

std::uint32_t Priority(std::uint32_t id) {
  std::uint32_t hash = (id ^ id >> 16) * 0x7feb352du;
  hash = (hash ^ hash >> 15) * 0x846ca68bu;
  return hash ^ hash >> 16;
}

bool IsBefore(const Block& a, const Block& b) { return a.size != b.size ? a.size < b.size : a.start < b.start; }

}  // namespace

void FreeIndex::InsertLarge(Block* blocks, std::uint32_t id) {
  Block& block = blocks[id];
  std::uint32_t priority = Priority(id);
  std::uint32_t* link = &root_;
  while (*link != 0 && Priority(*link) >= priority) {
    link = IsBefore(block, blocks[*link]) ? &blocks[*link].left : &blocks[*link].right;
  }
  // Every priority in this subtree is lower: split it by the new key, and make its halves the new
  // node's children.
  std::uint32_t rest = *link;
  *link = id;
  std::uint32_t* below = &block.left;
  std::uint32_t* above = &block.right;
  while (rest != 0) {
    if (IsBefore(blocks[rest], block)) {
      *below = rest;
      below = &blocks[rest].right;
      rest = *below;
    } else {
      *above = rest;
      above = &blocks[rest].left;
      rest = *above;
    }
  }
  *below = 0;
  *above = 0;
}

void FreeIndex::RemoveLarge(Block* blocks, std::uint32_t id) {
  const Block& block = blocks[id];
  std::uint32_t* link = &root_;
  while (*link != id) link = IsBefore(block, blocks[*link]) ? &blocks[*link].left : &blocks[*link].right;
  std::uint32_t below = block.left;
  std::uint32_t above = block.right;
  while (below != 0 && above != 0) {
    if (Priority(below) >= Priority(above)) {
      *link = below;
      link = &blocks[below].right;
      below = *link;
    } else {
      *link = above;
      link = &blocks[above].left;
      above = *link;
    }
  }
  *link = below != 0 ? below : above;
}

std::uint32_t FreeIndex::FindLarge(const Block* blocks, std::uint64_t size) const {
  std::uint32_t best = 0;
  for (std::uint32_t id = root_; id != 0;) {
    if (blocks[id].size >= size) {
      best = id;
      id = blocks[id].left;
    } else {
      id = blocks[id].right;
    }
  }
  return best;
}

}  // namespace cistern::software
