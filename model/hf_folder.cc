// Finds and opens the folder's files. An index may come from anybody, so its file names must be
// plain names whose links stay inside the folder (or in the blobs of Hugging Face's cache), and
// each tensor must be in the file that the index says, and nowhere else.
#include "model/hf_folder.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <system_error>

#include "core/json.h"
#include "core/log.h"
#include "model/hf_config.h"
#include "model/safetensors_file.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr int64_t kMaxConfigBytes = 16 << 20;
constexpr int64_t kMaxIndexBytes = 64 << 20;
constexpr int64_t kMaxTokenizerBytes = 64 << 20;  // as the tokenizer's own
constexpr size_t kMaxFiles = 512;                 // all are open at once
constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

std::string In(const std::string& folder, const std::string& name) { return folder + "/" + name; }

bool Exists(const std::string& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0;
}

std::string Shown(const std::string& path) { return Escaped(path, 512); }

bool IsWithin(const fs::path& folder, const fs::path& file) {
  return std::mismatch(folder.begin(), folder.end(), file.begin(), file.end()).first ==
         folder.end();
}

// Where Hugging Face's cache keeps the bytes of MODEL/snapshots/REVISION: MODEL/blobs. Empty for
// other folders.
fs::path BlobFolder(const fs::path& real_folder) {
  if (real_folder.parent_path().filename() != "snapshots") return {};
  return real_folder.parent_path().parent_path() / "blobs";
}

// A file that the index names must be a plain name of this folder. A link may not lead out of it,
// since the index may come from somebody else; to the blobs of Hugging Face's cache it may.
Status CheckInside(const std::string& folder, const std::string& name, const std::string& where) {
  if (name.empty() || name == "." || name == ".." ||
      name.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos) {
    return InvalidArgument("{}: file name \"{}\" is not a plain name inside the folder", where,
                           Escaped(name));
  }
  std::error_code error;
  const fs::path real_folder = fs::canonical(folder, error);
  const fs::path real_file = fs::canonical(In(folder, name), error);
  if (error) {
    return MakeStatus(absl::StatusCode::kNotFound, "{}: cannot be opened: {}",
                      Shown(In(folder, name)), error.message());
  }
  const fs::path blobs = BlobFolder(real_folder);
  if (!IsWithin(real_folder, real_file) && (blobs.empty() || !IsWithin(blobs, real_file))) {
    return InvalidArgument("{}: is a link out of the folder, wanted a file inside it",
                           Shown(In(folder, name)));
  }
  return absl::OkStatus();
}

std::optional<WeightFormat> FormatOf(const std::string& dtype) {
  if (dtype == "F32") return WeightFormat::kF32;
  if (dtype == "F16") return WeightFormat::kF16;
  if (dtype == "BF16") return WeightFormat::kBF16;
  return std::nullopt;
}

// Opens one file of weights and appends its tensors.
Status AddFile(const std::string& folder, const std::string& name, HfWeights& weights) {
  ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(In(folder, name)));
  const auto index = static_cast<int32_t>(weights.files.size());
  for (const SafetensorsEntry& entry : file.entries()) {
    const auto format = FormatOf(entry.dtype);
    if (!format) {
      return InvalidArgument("{}: tensor {} has dtype {}, wanted F32, F16 or BF16",
                             Shown(In(folder, name)), Escaped(entry.name), entry.dtype);
    }
    weights.tensors.push_back(
        {entry.name, *format, entry.shape, entry.size_bytes, index, entry.offset});
  }
  weights.files.push_back(std::move(file).TakeFile());
  return absl::OkStatus();
}

// tensor -> file, from the index.
StatusOr<std::map<std::string, std::string>> ReadIndex(const std::string& folder) {
  const std::string path = In(folder, kIndexFile);
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxIndexBytes));
  ASSIGN_OR_RETURN(const Json root, ParseJson(text, Shown(path)));
  const auto map = root.is_object() ? root.find("weight_map") : root.end();
  if (map == root.end() || !map->is_object() || map->empty()) {
    return InvalidArgument("{}: has no weight_map, wanted an object of tensor and file names",
                           Shown(path));
  }
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string()) {
      return InvalidArgument("{}: tensor {} is in {}, wanted a file name", Shown(path),
                             Escaped(tensor), JsonShown(file));
    }
    files[tensor] = file.get<std::string>();
  }
  return files;
}

void WarnOfUnlistedFiles(const std::string& folder, const std::set<std::string>& listed) {
  std::error_code error;
  for (const auto& item : fs::directory_iterator(folder, error)) {
    const std::string name = item.path().filename().string();
    if (name.ends_with(".safetensors") && !listed.contains(name)) {
      spdlog::warn("{}: is not listed in {} and is ignored", Shown(item.path().string()),
                   kIndexFile);
    }
  }
}

// Every listed tensor is in its file, and every tensor of a file is listed for it (so none twice).
Status CheckIndex(const std::string& folder, const std::map<std::string, std::string>& index,
                  const std::vector<std::string>& names, const HfWeights& weights) {
  std::set<std::pair<std::string, std::string>> present;
  for (const FoundTensor& tensor : weights.tensors) {
    const std::string& name = names[static_cast<size_t>(tensor.file)];
    const auto listed = index.find(tensor.name);
    if (listed == index.end() || listed->second != name) {
      return InvalidArgument("{}: holds tensor {}, which {} puts in {}", Shown(In(folder, name)),
                             Escaped(tensor.name), kIndexFile,
                             listed == index.end() ? "no file" : Escaped(listed->second));
    }
    present.emplace(tensor.name, name);
  }
  for (const auto& [tensor, name] : index) {
    if (!present.contains({tensor, name})) {
      return InvalidArgument("{}: does not hold tensor {}, as {} says", Shown(In(folder, name)),
                             Escaped(tensor), kIndexFile);
    }
  }
  return absl::OkStatus();
}

// Reads a companion file when it exists.
StatusOr<std::optional<std::string>> ReadOptional(const std::string& path, int64_t max_bytes) {
  if (!Exists(path)) return std::optional<std::string>();
  ASSIGN_OR_RETURN(std::string text, ReadTextFile(path, max_bytes));
  return std::optional(std::move(text));
}

}  // namespace

StatusOr<HfDescription> ReadHfDescription(const std::string& folder) {
  HfDescription result;
  std::string path = In(folder, "config.json");
  ASSIGN_OR_RETURN(const std::string config, ReadTextFile(path, kMaxConfigBytes));
  ASSIGN_OR_RETURN(result.config, ParseHfConfig(config, Shown(path)));

  path = In(folder, "generation_config.json");
  ASSIGN_OR_RETURN(const auto generation, ReadOptional(path, kMaxConfigBytes));
  if (generation) RETURN_IF_ERROR(ApplyGenerationConfig(*generation, Shown(path), result.config));

  path = In(folder, "tokenizer_config.json");
  ASSIGN_OR_RETURN(const auto tokenizer_config, ReadOptional(path, kMaxConfigBytes));
  if (tokenizer_config) {
    RETURN_IF_ERROR(ApplyTokenizerConfig(*tokenizer_config, Shown(path), result.config));
  }
  ASSIGN_OR_RETURN(auto chat_template, ReadOptional(In(folder, "chat_template.jinja"), 1 << 20));
  if (chat_template) result.config.chat_template = *std::move(chat_template);

  ASSIGN_OR_RETURN(auto tokenizer, ReadOptional(In(folder, "tokenizer.json"), kMaxTokenizerBytes));
  if (tokenizer) result.vocabulary.tokenizer_json = *std::move(tokenizer);
  return result;
}

StatusOr<HfWeights> OpenHfWeights(const std::string& folder) {
  HfWeights weights;
  if (Exists(In(folder, kSingleFile))) {
    // The operator chose the folder and the name is ours: wherever a link leads, it is meant.
    RETURN_IF_ERROR(AddFile(folder, kSingleFile, weights));
    WarnOfUnlistedFiles(folder, {kSingleFile});
    return weights;
  }
  if (!Exists(In(folder, kIndexFile))) {
    return MakeStatus(absl::StatusCode::kNotFound, "{}: has neither {} nor {}", Shown(folder),
                      kSingleFile, kIndexFile);
  }
  ASSIGN_OR_RETURN(const auto index, ReadIndex(folder));
  std::set<std::string> listed;
  for (const auto& [tensor, name] : index) listed.insert(name);
  const std::vector<std::string> names(listed.begin(), listed.end());
  if (names.size() > kMaxFiles) {
    return InvalidArgument("{}: names {} files, wanted at most {}", Shown(In(folder, kIndexFile)),
                           names.size(), kMaxFiles);
  }
  for (const std::string& name : names) {
    RETURN_IF_ERROR(CheckInside(folder, name, Shown(In(folder, kIndexFile))));
  }
  for (const std::string& name : names) RETURN_IF_ERROR(AddFile(folder, name, weights));
  RETURN_IF_ERROR(CheckIndex(folder, index, names, weights));
  WarnOfUnlistedFiles(folder, listed);
  return weights;
}

}  // namespace longspan
