/* SPDX-License-Identifier: Apache-2.0 */
/* A libpmix.so.2 that counts calls of a client. It reads their arguments with PMIx's own header. */
#include <pmix.h>

int fake_uses = 0;   /* as many calls of PMIx_Finalize end PMIx */
int fake_fences = 0; /* of all ranks, with data */

int PMIx_Initialized(void) { return fake_uses > 0; }

pmix_status_t PMIx_Finalize(const pmix_info_t info[], size_t count) {
  (void)info;
  (void)count;
  --fake_uses;
  return PMIX_SUCCESS;
}

pmix_status_t PMIx_Fence(const pmix_proc_t ranks[], size_t rank_count, const pmix_info_t info[], size_t info_count) {
  if (ranks != NULL || rank_count != 0 || info_count != 1) return PMIX_ERR_BAD_PARAM;
  if (strncmp(info[0].key, PMIX_COLLECT_DATA, PMIX_MAX_KEYLEN) != 0) return PMIX_ERR_BAD_PARAM;
  if (info[0].flags != 0 || info[0].value.type != PMIX_BOOL || !info[0].value.data.flag) return PMIX_ERR_BAD_PARAM;
  ++fake_fences;
  return PMIX_SUCCESS;
}
