/* SPDX-License-Identifier: Apache-2.0 */
/* A machine with another name. Preloaded: its function takes the place of the C library's. */
#include <stdlib.h>
#include <string.h>

int gethostname(char* name, size_t size) {
  const char* fake = getenv("FAKE_HOST");
  strncpy(name, fake != NULL ? fake : "fake", size);
  return 0;
}
