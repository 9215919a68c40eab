// Runs the cases on the device that the program tests.
#ifndef CISTERN_TEST_RUN_H_
#define CISTERN_TEST_RUN_H_

namespace cistern::test {

// Runs every case, or those whose name contains the text. The status with which the program exits: 0 only
// if no check failed.
int RunCases(const char* only);

}  // namespace cistern::test

#endif  // CISTERN_TEST_RUN_H_
