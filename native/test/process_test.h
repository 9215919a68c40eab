#ifndef CISTERN_TEST_PROCESS_TEST_H_
#define CISTERN_TEST_PROCESS_TEST_H_

namespace cistern::test {

// Runs one of the scenes for which the process tests start this program. Returns the exit status.
int PlayScene(const char* scene);
// The same for the tests of memory that processes share, which give the scene handles as text.
int PlayScene(const char* scene, const char* given);

}  // namespace cistern::test

#endif  // CISTERN_TEST_PROCESS_TEST_H_
