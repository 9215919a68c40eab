// Which library an address is in, and the account that stands for it.
#ifndef CISTERN_INTERPOSE_LIBRARIES_H_
#define CISTERN_INTERPOSE_LIBRARIES_H_

#include <cstdint>

namespace cistern::interpose {

struct Library {
  std::uint16_t account;  // from 1, or 0 if there are too many
  bool is_nvidias;        // or this one: whoever called it is asked for instead
  bool is_driver;         // the driver itself, or a part of it
  bool has_v8;
};

// The library of a return address. Takes the loader's lock, unless the thread has asked for this address before.
Library LibraryOf(const void* address);

// The account of a name that a program has chosen. A name that is too long is cut off.
std::uint16_t AccountNamed(const char* name);

// The account's name, such as `onnxruntime-node` for what is in node_modules/onnxruntime-node, or `libggml.so`.
const char* AccountName(std::uint16_t account);
// The limits of the account, as bits.
std::uint32_t AccountLimits(std::uint16_t account);

// Libraries may have been unloaded: addresses may now be in others.
void ForgetAddresses();
// Rises whenever that happens.
std::uint32_t AddressGeneration();

}  // namespace cistern::interpose

#endif  // CISTERN_INTERPOSE_LIBRARIES_H_
