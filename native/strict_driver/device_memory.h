// The memory of one device: 2 MiB granules, which small allocations share. The host cannot access
// the addresses that callers see, as on a GPU; the driver itself goes through `alias`.
#ifndef CISTERN_STRICT_DRIVER_DEVICE_MEMORY_H_
#define CISTERN_STRICT_DRIVER_DEVICE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <map>

namespace cistern::strict {

inline constexpr std::size_t kGranule = std::size_t{2} << 20;
inline constexpr std::size_t kUnit = 512;

inline std::size_t RoundUp(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

class DeviceMemory {
 public:
  // Reserves the addresses. There are more addresses than memory, so that holes between allocations
  // cost no capacity.
  void Open(std::size_t bytes);

  bool TakeGranules(std::size_t bytes, std::size_t* offset);
  void GiveGranules(std::size_t offset, std::size_t bytes);

  // Makes room for a plain allocation; `reserved` is the size of its address range.
  bool Take(std::size_t bytes, std::size_t* offset, std::size_t* reserved);
  void Give(std::size_t offset, std::size_t bytes, std::size_t reserved);

  // Addresses without memory, and memory without addresses: a context takes the latter.
  bool TakeAddresses(std::size_t bytes, std::uintptr_t* address);
  void GiveAddresses(std::uintptr_t address, std::size_t bytes);
  void Charge(std::size_t bytes) { used_ += bytes; }
  bool TryCharge(std::size_t bytes);
  void Uncharge(std::size_t bytes) { used_ -= bytes; }
  // Whether this can be the total: at most the number of addresses, and at least what is in use.
  bool CanHave(std::size_t bytes) const { return bytes >= used_ && bytes <= addresses_; }
  void Resize(std::size_t bytes) { total_ = bytes; }

  // Moves all contents to another file, and back.
  void MoveOut();
  void MoveIn();

  bool Owns(std::uintptr_t address) const { return address >= start() && address < start() + addresses_; }
  std::uintptr_t start() const { return reinterpret_cast<std::uintptr_t>(base_); }
  char* HostView(std::uintptr_t address) const { return alias_ + (address - start()); }
  // Makes memory appear at another address of the driver's own.
  void MapView(char* at, std::size_t offset, std::size_t bytes) const;
  int file() const { return file_; }
  std::size_t total() const { return total_; }
  std::size_t used() const { return used_; }

 private:
  using Holes = std::map<std::size_t, std::size_t>;  // offset -> bytes

  static bool TakeFirst(Holes& holes, std::size_t bytes, std::size_t* offset);
  static void Merge(Holes& holes, std::size_t offset, std::size_t bytes);

  char* base_ = nullptr;
  char* alias_ = nullptr;
  std::size_t addresses_ = 0;
  std::size_t total_ = 0;
  std::size_t used_ = 0;
  int file_ = -1;
  int moved_ = -1;
  Holes holes_;
  std::map<std::size_t, Holes> shared_granules_;  // offset -> the holes in it
};

}  // namespace cistern::strict

#endif  // CISTERN_STRICT_DRIVER_DEVICE_MEMORY_H_
