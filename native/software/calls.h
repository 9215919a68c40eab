// The driver's functions as the software device has them: each checks arguments and handles, then calls what does the work.
//
// A call that names a default stream, or creates or allocates something, needs a current context; one that names everything by handle does
// not. They are declared from the table's own list, so that none can be missing or differ from it.
#ifndef CISTERN_SOFTWARE_CALLS_H_
#define CISTERN_SOFTWARE_CALLS_H_

#include "cuda/driver_table.h"

namespace cistern::software::calls {

#define CISTERN_DECLARE(member, symbol, version, parameters) Status member parameters;
CISTERN_DRIVER_FUNCTIONS(CISTERN_DECLARE)
#undef CISTERN_DECLARE

}  // namespace cistern::software::calls

#endif  // CISTERN_SOFTWARE_CALLS_H_
