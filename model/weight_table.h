// Fits the tensors found in files to those that a config asks for, and finds them by role. The
// check that refuses missing, surplus and misshapen tensors, for every kind of file.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/status.h"
#include "model/weight_names.h"
#include "model/weight_source.h"

namespace longspan {

struct FoundTensor {
  std::string name;
  WeightFormat format{};
  std::vector<int64_t> shape;  // outermost first
  int64_t size_bytes = 0;
  int32_t file = 0;    // index into the source's open files
  int64_t offset = 0;  // from the start of that file
};

struct PlacedWeight {
  WeightTensor tensor;
  int32_t file = 0;
  int64_t offset = 0;
};

// Immutable once built; tensors keep their addresses as long as the table lives, moves included.
class WeightTable {
 public:
  // Names that may be there and are no weights (frequency tables, the output matrix of a tied
  // model) are passed over. where: file or folder for messages; file_names: per file index.
  static StatusOr<WeightTable> Build(const ModelConfig& config, WeightNaming naming,
                                     const std::vector<FoundTensor>& found,
                                     const std::vector<std::string>& file_names,
                                     const std::string& where);

  const WeightTensor* Find(WeightRole role, int32_t layer) const;  // null: none
  // The place of a tensor that Find returned.
  const PlacedWeight& Place(const WeightTensor& tensor) const;

  // The format that most bytes of matrices have.
  WeightFormat MainFormat() const;

 private:
  std::map<std::pair<WeightRole, int32_t>, PlacedWeight> weights_;
};

}  // namespace longspan
