// CPU attention in float for AVX-512. Compiled with its flags: holds nothing that other files could
// be linked to but its table.
#include "kernels/attention/attention_avx512.h"

#include "kernels/attention/attention_loop.h"

namespace longspan {

const AttentionIsa kAttentionAvx512 = {AttentionLoop<Avx512>::Attend,
                                       AttentionLoop<Avx512>::Combine};

}  // namespace longspan
