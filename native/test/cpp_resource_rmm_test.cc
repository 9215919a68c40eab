// cistern.hpp where RMM's headers are: errors are RMM's.
#include <cistern.hpp>

#include "thread_safe_fixture.h"

namespace cistern::test {

static_assert(std::is_same_v<out_of_memory, rmm::out_of_memory>);

TEST("with RMM's headers, a lack of memory is RMM's error") {
  Global global(kMiB);
  Resource resource(global);
  resource.c->retain(resource.c->state);
  device_memory_resource memory(resource.c);
  bool is_caught = false;
  try {
    memory.allocate_sync(2 * kMiB);
  } catch (const rmm::out_of_memory& error) {
    is_caught = std::string(error.what()).find("out of memory: 2097152 bytes") == 0;
  }
  CHECK(is_caught);
}

}  // namespace cistern::test
