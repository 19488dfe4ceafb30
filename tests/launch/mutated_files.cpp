// SPDX-License-Identifier: Apache-2.0
// Host files, config files and launcher messages with changed, cut, duplicated and mixed bytes.
#include "accelerate/env/config_file.hpp"
#include "accelerate/env/slurm.hpp"
#include "launch/plan/error.hpp"
#include "launch/plan/hosts.hpp"
#include "launch/plan/resolve.hpp"
#include "launch/plan/runner_selection.hpp"
#include "launch/rendezvous/message.hpp"
#include "launch/run/failure_report.hpp"
#include "launch/run/hang_status.hpp"
#include "launch/run/reported_failure.hpp"
#include "launch/runners/frames.hpp"
#include "tests/mutation.hpp"

namespace {

using namespace accelerate::launch;
namespace env = accelerate::env;

std::vector<std::string> configs() {
  std::vector<std::string> texts;
  for (const auto& entry : std::filesystem::directory_iterator(TEST_SOURCE_DIR "/tests/launch/configs")) {
    texts.push_back(mutation::contents(entry.path()));
  }
  std::sort(texts.begin(), texts.end());
  return texts;
}

mutation::Format host_files() {
  return {.whole = {"gpu-a slots=4\nuser@gpu-b:2\n# none\n[fd77::1]:3\n", "a,b:2,c"},
          .read = [](const auto& folder, uint64_t way) {
            auto hosts =
                way % 2 == 0 ? parse_hosts(mutation::contents(folder / "x")) : read_hostfile((folder / "x").string());
            fill_hosts(hosts, static_cast<int64_t>(way % 7));
          }};
}

mutation::Format config_files() {
  return {.whole = configs(), .read = [](const auto& folder, uint64_t) {
            (void)resolve_options({}, {}, env::read_config_file((folder / "x").string(), "the test"));
          }};
}

/// Environment of a launcher that srun started.
mutation::Format slurm_variables() {
  return {.whole = {"n[03-04,7],b", "rack[2,5]-n[1-3]", "2(x3),1", "4"}, .read = [](const auto& folder, uint64_t way) {
            const auto text = mutation::contents(folder / "x");
            (void)env::slurm::tasks_of_node(text, static_cast<int64_t>(way % 5));
            const env::Variables variables{{"SLURM_JOB_ID", "1"},
                                           {"SLURM_STEP_ID", way % 3 == 0 ? text : "0"},
                                           {"SLURM_STEP_NUM_NODES", "2"},
                                           {"SLURM_STEP_NUM_TASKS", way % 3 == 1 ? text : "2"},
                                           {"SLURM_STEP_NODELIST", text}};
            if (choose_runner({}, variables) == Runner::local) (void)with_slurm_placement({}, variables);
          }};
}

mutation::Format messages() {
  return {
      .whole = {message_of(JoinRequest{.version = "1", .host = "a"}), message_of(JoinReply{.job_id = "a", .port = 1}),
                message_of(JobFailure{.text = "x"}), message_of(HangNotice{.cause = "x"}),
                message_of(HangStatus{.is_still = true, .ranks = {{.rank = 1, .beat = {.beats = 2, .call = "x"}}}})},
      .read = [](const auto& folder, uint64_t) {
        auto buffer = mutation::contents(folder / "x");
        const auto message = take_message(buffer).value_or("");
        const auto hello = parse_join_request(message);
        if (hello) (void)mismatch({}, *hello);
        const bool read = hello || parse_join_reply(message) || parse_job_failure(message) ||
                          parse_hang_notice(message) || parse_hang_status(message);
        if (!read) fail(accelerate::ErrorKind::peer, "no message");
      }};
}

/// Input of an agent over ssh.
mutation::Format frames() {
  const RemoteJob job{.version = "1", .folder = "/", .arguments = {"--cpu=1", "--", "x"}, .variables = {"A=b"}};
  return {.whole = {encode_frame(frame_of(job)) + encode_frame({.kind = FrameKind::input, .bytes = "stdin"}) +
                    encode_frame({.kind = FrameKind::signal, .bytes = "15"})},
          .read = [](const auto& folder, uint64_t) {
            auto buffer = mutation::contents(folder / "x");
            auto frame = take_frame(buffer);
            if (frame) (void)job_of(*frame);
            while (frame) frame = take_frame(buffer);
          }};
}

/// Output of srun in pieces.
mutation::Format reports() {
  const Failure failure{.rank = 1, .pid = 12, .cause = "exit code 7"};
  return {.whole = {"up\n" + failure_report(failure, {.host = "gpu-b", .is_one_of_many = true, .last_lines = "nan\n"}),
                    failure_report({.rank = 0, .pid = 9, .cause = "signal 9 (killed)"}, {.is_one_of_many = true})},
          .read = [](const auto& folder, uint64_t way) {
            const auto text = mutation::contents(folder / "x");
            FirstReportedFailure first;
            for (size_t at = 0, step = 1 + way % 64; at < text.size(); at += step) first.add(text.substr(at, step));
            if (!first.found()) fail(accelerate::ErrorKind::peer, "no failure is reported");
          }};
}

}  // namespace

int main(int argc, char** argv) {
  return mutation::run_formats({{"hostfile", host_files},
                                {"config", config_files},
                                {"slurm", slurm_variables},
                                {"message", messages},
                                {"frames", frames},
                                {"report", reports}},
                               argc, argv);
}
