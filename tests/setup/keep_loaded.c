// SPDX-License-Identifier: Apache-2.0
// Linked into programs with the address sanitizer: libraries stay loaded, so that lsan.supp can name them.
int dlclose(void *handle) {
  (void)handle;
  return 0;
}
