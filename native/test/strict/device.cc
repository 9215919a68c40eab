// The tests of captures over the strict driver: runs every case, or with `--only TEXT` those whose name
// contains TEXT.
#include <cstdlib>
#include <cstring>

#include "fixture.h"
#include "run.h"
#include "scenes.h"
#include "strict_driver/calls.h"

namespace cistern::test {

const DriverTable& TableUnderTest() {
  static const DriverTable table = {
#define CISTERN_CALL(member, symbol, version, parameters) strict::calls::member,
      CISTERN_DRIVER_FUNCTIONS(CISTERN_CALL)
#undef CISTERN_CALL
  };
  return table;
}

// It always does.
void RunInAnyOrder(bool) {}

}  // namespace cistern::test

int main(int argc, char** argv) {
  setenv("STRICT_DRIVER_DEVICES", "2", 0);
  setenv("STRICT_DRIVER_MEMORY_MB", "256", 0);
  setenv("STRICT_DRIVER_CONTEXT_MB", "0", 0);
  // The cases call what is a misuse on purpose, and close gates on several streams.
  setenv("STRICT_DRIVER_LOG", "/dev/null", 0);
  setenv("STRICT_DRIVER_SERIAL_CALLBACKS", "0", 0);
  if (argc == 3 && std::strcmp(argv[1], "--scene") == 0) return cistern::test::PlayScene(argv[2]);
  return cistern::test::RunCases(argc == 3 && std::strcmp(argv[1], "--only") == 0 ? argv[2] : "");
}
