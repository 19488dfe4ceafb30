// SPDX-License-Identifier: Apache-2.0
// Must not compile: the test wants both sentences in the compiler's output.
#include <accelerate/accelerate.hpp>

void a_number(accelerate::Accelerator& accelerator, int number) { (void)accelerator.prepare(number); }
void a_list_of_numbers(accelerate::Accelerator& accelerator, std::vector<int> numbers) {
  (void)accelerator.prepare(numbers);
}
