// The statuses that are cistern's own: NativeStatus of src/driver/native.ts. Positive ones are the driver's.
#ifndef CISTERN_ADDON_NATIVE_STATUS_H_
#define CISTERN_ADDON_NATIVE_STATUS_H_

#include "cuda/driver_table.h"

namespace cistern {

enum : Status {
  kInvalidArgument = -1,
  kStaleHandle = -2,
  kForeignPointer = -3,
  kDoubleFree = -4,
  kWrongSize = -5,
  kAddressTooLarge = -6,
  kNoBackend = -7,
  kHostFunctionReady = -8,
  kHostOutOfMemory = -9,
  kInvalidRange = -10,
};

}  // namespace cistern

#endif  // CISTERN_ADDON_NATIVE_STATUS_H_
