// cistern's own statuses: NativeStatus of src/driver/native.ts. Positive statuses are the driver's.
#ifndef CISTERN_CUDA_NATIVE_STATUS_H_
#define CISTERN_CUDA_NATIVE_STATUS_H_

#include "cuda/driver_table.h"

namespace cistern {

inline constexpr Status kInvalidArgument = -1;
inline constexpr Status kStaleHandle = -2;
inline constexpr Status kForeignPointer = -3;
inline constexpr Status kDoubleFree = -4;
inline constexpr Status kWrongSize = -5;
inline constexpr Status kAddressTooLarge = -6;
inline constexpr Status kNoBackend = -7;
inline constexpr Status kHostFunctionReady = -8;
inline constexpr Status kHostOutOfMemory = -9;
inline constexpr Status kInvalidRange = -10;
inline constexpr Status kOutOfAddresses = -11;
inline constexpr Status kStaleMessage = -12;
inline constexpr Status kForeignMessage = -13;
inline constexpr Status kOwnMessage = -14;
inline constexpr Status kForbiddenProcess = -15;
inline constexpr Status kUnknownVersion = -16;
inline constexpr Status kOtherBackend = -17;
inline constexpr Status kNoSuchDevice = -18;
inline constexpr Status kTooManyImporters = -19;
inline constexpr Status kTooManyExports = -20;
inline constexpr Status kNoAccess = -21;
inline constexpr Status kInUse = -22;
inline constexpr Status kNoProcessMemory = -23;
inline constexpr Status kForeignContext = -24;
inline constexpr Status kCapturing = -25;
inline constexpr Status kCapturedEvent = -26;
inline constexpr Status kBrokenIndex = -27;
inline constexpr Status kAsleep = -28;

}  // namespace cistern

#endif  // CISTERN_CUDA_NATIVE_STATUS_H_
