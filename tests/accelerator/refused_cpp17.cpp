// SPDX-License-Identifier: Apache-2.0
// Must not compile as C++17: tests/setup/refused.cmake expects the errors of refused_cpp17.txt and no others.
#include <accelerate/accelerate.hpp>

int main() { accelerate::Accelerator accelerator; }
