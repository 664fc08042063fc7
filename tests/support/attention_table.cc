// Rows are taken greedily: of a few random candidates the one with most pairs not seen before.
#include "tests/support/attention_table.h"

#include <algorithm>
#include <random>

#include "tests/support/attention_table_options.h"

namespace longspan {
namespace {

using Row = AttentionTableRow;
using Value = AttentionTableValue;
using Option = AttentionTableOption;
using Choice = std::vector<int32_t>;

// Which pairs of values are still missing.
class Pairs {
 public:
  // All pairs of values that the server serves.
  Pairs(const std::vector<Option>& options, AttentionServer server) : options_(options) {
    for (const Option& option : options) {
      begin_.push_back(num_values_);
      num_values_ += static_cast<int32_t>(option.values.size());
    }
    missing_.assign(static_cast<size_t>(num_values_) * num_values_, false);
    for (size_t a = 0; a < options.size(); ++a) {
      for (size_t b = a + 1; b < options.size(); ++b) {
        for (size_t x = 0; x < options[a].values.size(); ++x) {
          for (size_t y = 0; y < options[b].values.size(); ++y) {
            if ((options[a].values[x].servers & options[b].values[y].servers & server) == 0)
              continue;
            missing_[At(a, static_cast<int32_t>(x), b, static_cast<int32_t>(y))] = true;
            ++num_missing_;
          }
        }
      }
    }
  }

  int64_t num_missing() const { return num_missing_; }
  int32_t NumNew(const Choice& choice) const {
    int32_t num = 0;
    for (size_t a = 0; a < choice.size(); ++a) {
      for (size_t b = a + 1; b < choice.size(); ++b) {
        num += missing_[At(a, choice[a], b, choice[b])];
      }
    }
    return num;
  }
  void Take(const Choice& choice) {
    for (size_t a = 0; a < choice.size(); ++a) {
      for (size_t b = a + 1; b < choice.size(); ++b) {
        const size_t at = At(a, choice[a], b, choice[b]);
        num_missing_ -= missing_[at];
        missing_[at] = false;
      }
    }
  }
  // Puts the first missing pair into a choice.
  void PutFirst(Choice* choice) const {
    for (size_t a = 0; a < choice->size(); ++a) {
      for (size_t b = a + 1; b < choice->size(); ++b) {
        for (size_t x = 0; x < options_[a].values.size(); ++x) {
          for (size_t y = 0; y < options_[b].values.size(); ++y) {
            if (!missing_[At(a, static_cast<int32_t>(x), b, static_cast<int32_t>(y))]) continue;
            (*choice)[a] = static_cast<int32_t>(x);
            (*choice)[b] = static_cast<int32_t>(y);
            return;
          }
        }
      }
    }
  }

 private:
  size_t At(size_t a, int32_t x, size_t b, int32_t y) const {
    return static_cast<size_t>(begin_[a] + x) * num_values_ + begin_[b] + y;
  }

  const std::vector<Option>& options_;
  std::vector<int32_t> begin_;  // by option: the number of its first value
  int32_t num_values_ = 0;
  std::vector<bool> missing_;
  int64_t num_missing_ = 0;
};

Choice RandomChoice(const std::vector<Option>& options, AttentionServer server,
                    std::mt19937* random) {
  Choice choice;
  for (const Option& option : options) {
    int32_t value;
    do value = static_cast<int32_t>((*random)() % option.values.size());
    while ((option.values[value].servers & server) == 0);
    choice.push_back(value);
  }
  return choice;
}

Row MakeRow(const std::vector<Option>& options, const Choice& choice, size_t index) {
  Row row;
  row.values = choice;
  row.spec.block_order_seed = static_cast<uint32_t>(index) + 1;
  row.spec.extra_table_entries = static_cast<int32_t>(index % 3);
  constexpr int32_t kCtas[] = {1, 2, 3, 7, 40};
  row.num_ctas = kCtas[index % std::size(kCtas)];
  for (size_t i = 0; i < options.size(); ++i) {
    const Value& value = options[i].values[choice[i]];
    value.apply(row);
    row.servers &= value.servers;
    if (value.name.empty()) continue;
    row.name += (row.name.empty() ? "" : "_") + value.name;
  }
  std::replace(row.name.begin(), row.name.end(), '-', 'm');
  std::replace(row.name.begin(), row.name.end(), '+', 'p');
  return row;
}

}  // namespace

std::vector<AttentionOption> AttentionTableOptions() {
  std::vector<AttentionOption> list;
  for (const Option& option : AttentionTableOptionsWithValues()) {
    list.push_back({option.name, {}});
    for (const Value& value : option.values) list.back().servers.push_back(value.servers);
  }
  return list;
}

std::vector<AttentionTableRow> MakeAttentionTable() {
  const std::vector<Option> options = AttentionTableOptionsWithValues();
  std::mt19937 random(7);
  std::vector<Row> rows;
  const struct {
    AttentionServer server;
    int64_t num_rows;  // at least
  } passes[] = {{kOnSm90, 240}, {kOnGpu, kAttentionTableGpuRows}, {kOnCpu, 600}};
  for (const auto& [server, num_rows] : passes) {
    Pairs pairs(options, server);
    int64_t num_served = 0;
    for (const Row& row : rows) {
      if ((row.servers & server) == 0) continue;
      pairs.Take(row.values);
      ++num_served;
    }
    for (; pairs.num_missing() > 0 || num_served < num_rows; ++num_served) {
      Choice best;
      int32_t most = -1;
      for (int candidate = 0; candidate < 40; ++candidate) {
        Choice choice = RandomChoice(options, server, &random);
        if (pairs.num_missing() > 0) pairs.PutFirst(&choice);
        const int32_t num = pairs.NumNew(choice);
        if (num <= most) continue;
        most = num;
        best = choice;
      }
      pairs.Take(best);
      rows.push_back(MakeRow(options, best, rows.size()));
    }
  }
  return rows;
}

}  // namespace longspan
