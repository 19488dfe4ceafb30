// SPDX-License-Identifier: Apache-2.0
// After a SIGKILL, the files of a run are readable and contain everything that it logged.
#include <doctest/doctest.h>

#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>

#include "accelerate/tracking/event_record.hpp"
#include "tests/launch/run.hpp"
#include "tests/temporary_folder.hpp"

using testing::lines_of;

namespace {

constexpr size_t kLogged = 500;  // minimum number of logged values

/// Logs in <folder> until it is killed.
void run_and_kill(const std::filesystem::path& folder) {
  testing::Child run({TEST_BINARY_DIR "/bin/tracked_run", folder.string(), "forever"});
  REQUIRE(run.wait_for(std::to_string(kLogged) + " logged"));
  kill(run.pid(), SIGKILL);
  CHECK(run.wait().code == 128 + SIGKILL);
}

std::filesystem::path event_file(const std::filesystem::path& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with("events.out.tfevents.")) return entry.path();
  }
  return {};
}

/// Number of complete records; all bytes must belong to one.
size_t whole_records(const std::string& bytes) {
  size_t count = 0;
  for (size_t at = 0; at < bytes.size(); ++count) {
    uint64_t length = 0;
    REQUIRE(at + 12 <= bytes.size());
    std::memcpy(&length, bytes.data() + at, sizeof(length));
    const std::string record = accelerate::tracking::event_record(bytes.substr(at + 12, length));
    REQUIRE(bytes.compare(at, record.size(), record) == 0);
    at += record.size();
  }
  return count;
}

}  // namespace

TEST_CASE("every tracker's file has complete records after its run is killed with signal 9") {
  const testing::TemporaryFolder folder;
  run_and_kill(folder.path);
  const auto run = folder.path / "digits";
  const auto rows = lines_of(run / "metrics.jsonl");
  REQUIRE(rows.size() >= 1 + kLogged);
  for (size_t i = 1; i < rows.size(); ++i) CHECK(nlohmann::json::parse(rows[i])["step"] == i - 1);
  const auto cells = lines_of(run / "metrics.csv");
  CHECK(cells.size() >= 1 + kLogged);
  CHECK(cells[0] == "step,time,loss,lr");
  for (size_t i = 1; i < cells.size(); ++i) CHECK(cells[i].ends_with(",0.5"));
  CHECK(whole_records(testing::text_of(event_file(run))) >= 2 + kLogged);
  CHECK(testing::text_of(run / "hparams.yml") ==
        "\"lr\": 0.5\n\"net\": \"basic: \\\"a\\\"\"\n\"fast\": true\n\"layers\": 2\n");
}

TEST_CASE("a run after a killed one continues in its files") {
  const testing::TemporaryFolder folder;
  run_and_kill(folder.path);
  run_and_kill(folder.path);  // continues in the same files
  const auto rows = lines_of(folder.path / "digits" / "metrics.jsonl");
  size_t runs = 0;
  for (const auto& row : rows) runs += nlohmann::json::parse(row).contains("config") ? 1 : 0;
  CHECK(runs == 2);
}
