// The tests of the software device and the order checker: runs every case, or with `--only TEXT` those whose
// name contains TEXT.
#include <cstring>

#include "fixture.h"
#include "process_test.h"
#include "run.h"

namespace cistern::test {

const DriverTable& TableUnderTest() { return software::Table(); }

void RunInAnyOrder(bool is_any) { software::SetStrict(is_any); }

}  // namespace cistern::test

int main(int argc, char** argv) {
  using namespace cistern;
  const char* only = argc == 3 && std::strcmp(argv[1], "--only") == 0 ? argv[2] : "";
  if (argc == 3 && *only == '\0') return test::PlayScene(argv[1], argv[2]);
  if (argc == 2) return test::PlayScene(argv[1]);
  CHECK_OK(software::Configure(test::kTotal, 2));
  return test::RunCases(only);
}
