// SPDX-License-Identifier: Apache-2.0
// Part of programs that are built with the address sanitizer: libraries stay loaded, so that lsan.supp can name them.
int dlclose(void *handle) {
  (void)handle;
  return 0;
}
