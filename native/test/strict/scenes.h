// What misuse_test.cc plays in processes of their own.
#ifndef CISTERN_TEST_STRICT_SCENES_H_
#define CISTERN_TEST_STRICT_SCENES_H_

namespace cistern::test {

// The number of checks that failed.
int PlayScene(const char* name);

}  // namespace cistern::test

#endif  // CISTERN_TEST_STRICT_SCENES_H_
