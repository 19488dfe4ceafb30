// SPDX-License-Identifier: Apache-2.0
#include "launch/plan/shell.hpp"

#include <doctest/doctest.h>

#include "tests/launch/run.hpp"

using accelerate::launch::as_script;
using accelerate::launch::for_shell;
using accelerate::launch::LaunchPlan;
using testing::Child;

namespace {

const std::vector<std::string> kHostile{"a b",     "it's",  "\"",   "$(touch /tmp/never)",
                                        "`id`",    "a\nb",  "-n",   "",
                                        "*",       "\\",    "~",    "a=b",
                                        "!x",      "{1,2}", "#",    ";",
                                        "&",       "<x>",   "\x01", "ä",
                                        "\xff\xfe"};

const std::string kDraw =
    "ACCELERATE_JOB_ID=$(od -A n -N 16 -t x1 /dev/urandom | tr -d ' \\n') && export ACCELERATE_JOB_ID || exit 1\n";

}  // namespace

TEST_CASE("plain words are not changed, all others are in single quotes") {
  CHECK(for_shell("./train") == "./train");
  CHECK(for_shell("--lr=1e-3") == "--lr=1e-3");
  CHECK(for_shell("") == "''");
  CHECK(for_shell("a b") == "'a b'");
  CHECK(for_shell("it's") == "'it'\\''s'");
  CHECK(for_shell(std::vector<std::string>{"echo", "$HOME"}) == "echo '$HOME'");
}

TEST_CASE("a shell restores every quoted word") {
  for (const auto& word : kHostile) {
    CAPTURE(word);
    CHECK(Child({"sh", "-c", "printf '%s|' " + for_shell(word)}).wait().out == word + "|");
    CHECK(Child({"bash", "-c", "printf '%s|' " + for_shell(word)}).wait().out == word + "|");
  }
}

TEST_CASE("a script sets the differences from the launcher's environment and the working directory") {
  const LaunchPlan one{.workers = {{.command = {"./train", "a b"}, .environment = {{"SAME", "1"}, {"NEW", "x y"}}}}};
  CHECK(as_script(one, {{"SAME", "1"}, {"OLD", "1"}}, "/my data") ==
        "cd '/my data' || exit 1\n" + kDraw + "exec env -u OLD 'NEW=x y' ./train 'a b'\n");
  LaunchPlan two = one;
  two.workers.push_back({.rank = 1, .command = {"./train"}, .environment = {{"SAME", "2"}}, .processors = {0, 2}});
  CHECK(as_script(two, {{"SAME", "1"}}, "/x") ==
        "cd /x || exit 1\n" + kDraw +
            "ranks=\nenv 'NEW=x y' ./train 'a b' &\nranks=\"$ranks $!\"\ntaskset -c 0,2 env SAME=2 ./train &\n"
            "ranks=\"$ranks $!\"\nfor rank in $ranks; do wait \"$rank\" || exit; done\n");
}

TEST_CASE("a shell that runs the script starts the launcher's commands, with special words and values") {
  for (const auto& word : kHostile) {
    CAPTURE(word);
    const LaunchPlan plan{.workers = {{.command = {"sh", "-c", "printf '%s|%s|%s' \"$1\" \"$V\" \"$PWD\"", "x", word},
                                       .environment = {{"PATH", getenv("PATH")}, {"V", word}}}}};
    CHECK(Child({"sh", "-c", as_script(plan, {{"PATH", getenv("PATH")}}, "/tmp")}).wait().out ==
          word + "|" + word + "|/tmp");
  }
}

TEST_CASE("a program with a name like a variable assignment is run") {
  const LaunchPlan plan{.workers = {{.command = {"no=such"}, .environment = {{"PATH", getenv("PATH")}}}}};
  CHECK(Child({"sh", "-c", as_script(plan, {{"PATH", getenv("PATH")}}, "/tmp")}).wait().code == 127);
}

TEST_CASE("the script of several ranks exits with the code of a failed one") {
  LaunchPlan plan{.workers = {{.command = {"true"}}, {.rank = 1, .command = {"sh", "-c", "exit 7"}}}};
  CHECK(Child({"sh", "-c", as_script(plan, {}, "/tmp")}).wait().code == 7);
}

TEST_CASE("the script uses mpirun if the launcher would serve MPI") {
  const LaunchPlan plan{
      .workers = {{.command = {"./train"}, .environment = {{"RANK", "0"}, {"OMPI_MCA_pml", "ob1"}}}, {.rank = 1}},
      .serve_mpi = true};
  CHECK(as_script(plan, {}, "/x") ==
        "cd /x || exit 1\n# accelerate_launch would start MPI itself; in a shell mpirun does.\nexec mpirun "
        "--oversubscribe -n 2 env OMPI_MCA_pml=ob1 ./train\n");
}
