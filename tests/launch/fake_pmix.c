/* SPDX-License-Identifier: Apache-2.0 */
/* A libpmix with failing calls, which FAKE_PMIX names. With OLD, one call is missing. */
#include <stdlib.h>
#include <string.h>

static int is_requested(const char* fault) {
  const char* text = getenv("FAKE_PMIX");
  return text != NULL && strcmp(text, fault) == 0;
}

int PMIx_server_init(void) { return is_requested("PMIx_server_init") ? -1 : 0; }
int PMIx_server_finalize(void) { return 0; }
int PMIx_server_register_nspace(void) { return 0; }
int PMIx_server_register_client(void) { return 0; }
int PMIx_server_setup_fork(void) { return -1; }
int PMIx_generate_regex(const char* input, char** output) {
  *output = strdup(is_requested("blob") ? "blob" : input);
  return is_requested("PMIx_generate_regex") ? -1 : 0;
}
#ifndef OLD
int PMIx_generate_ppn(const char* input, char** output) { return PMIx_generate_regex(input, output); }
#endif
const char* PMIx_Error_string(int status) { return status == 0 ? "SUCCESS" : "FAKED"; }
