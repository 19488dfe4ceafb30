/* SPDX-License-Identifier: Apache-2.0 */
/* Simulates a machine with another name: a preloaded library that replaces a function of the C library. */
#include <stdlib.h>
#include <string.h>

int gethostname(char* name, size_t size) {
  const char* fake = getenv("FAKE_HOST");
  strncpy(name, fake != NULL ? fake : "fake", size);
  return 0;
}
