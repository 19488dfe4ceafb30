// SPDX-License-Identifier: Apache-2.0
// Must not compile: the test looks for the sentence in the compiler's output.
#include <accelerate/accelerate.hpp>

void refused(accelerate::Accelerator& accelerator, int number) { (void)accelerator.prepare(number); }
