/* The header as a C99 program sees it, with every warning of the strictest dialect. */
#include "kernels/attention/dropin/attn_c.h"

int longspan_attn_header_is_c99(void);
int longspan_attn_header_is_c99(void) {
  longspan_attn_call call = {0};
  longspan_attn_append append = {0};
  call.struct_bytes = (int32_t)sizeof call;
  append.struct_bytes = (int32_t)sizeof append;
  return call.struct_bytes == 312 && append.struct_bytes == 152 ? LONGSPAN_ATTN_ABI : -1;
}
