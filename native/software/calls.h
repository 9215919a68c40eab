// The driver's functions as the software device implements them: each checks arguments and handles,
// then calls the function that does the work.
//
// A call that names a default stream, or creates or allocates something, needs a current context; a
// call that names everything by handle does not. The declarations come from the table's own list,
// so none can be missing or differ.
#ifndef CISTERN_SOFTWARE_CALLS_H_
#define CISTERN_SOFTWARE_CALLS_H_

#include "cuda/driver_table.h"

namespace cistern::software::calls {

#define CISTERN_DECLARE(member, symbol, version, parameters) Status member parameters;
CISTERN_DRIVER_FUNCTIONS(CISTERN_DECLARE)
#undef CISTERN_DECLARE

}  // namespace cistern::software::calls

#endif  // CISTERN_SOFTWARE_CALLS_H_
