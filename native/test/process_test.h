#ifndef CISTERN_TEST_PROCESS_TEST_H_
#define CISTERN_TEST_PROCESS_TEST_H_

namespace cistern::test {

// Runs one of the scenes for which the process tests start this program. Returns the exit status.
int PlayScene(const char* scene);

}  // namespace cistern::test

#endif  // CISTERN_TEST_PROCESS_TEST_H_
