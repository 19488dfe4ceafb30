# SPDX-License-Identifier: Apache-2.0
"""Compares the environment variables in the code of accelerate/ and launch/ with the columns "variable" of the reference
pages. A string literal like "MASTER_ADDR" in the code is the name of a variable unless OTHER_LITERALS explains it."""
import functools
import re
import unittest
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
PAGES = [TOP / "docs/reference" / page for page in ("environment.md", "settings.md", "command_line.md")]
SOURCES = [file for folder in ("accelerate", "launch") for ending in ("*.cpp", "*.hpp", "*.def")
           for file in sorted((TOP / folder).rglob(ending))]

COMMENT_OR_TEXT = r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"' + r"|'(?:\\.|[^'\\\n])'"
NAME = r"(?:[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+_?|[A-Z]+_MCA_\w+)"
WORD = r"[A-Z]{3,}"
# A name without underscore is a variable only if it is read or written by name: "HOME".
USE_OF_WORD = (rf'\b(?:getenv|setenv|unsetenv|find|field|given|contains|erase)\((?:\w+, )?"({WORD})"'
               rf'|\[\s*"({WORD})"\] =')
LOOP = r"for \((?:const char\*|const auto) \w+ : \{([^}]*)\}\)"

OTHER_LITERALS = {
    "values of settings": """BACKWARD_POST BACKWARD_PRE FULL_SHARD FULL_STATE_DICT HYBRID_SHARD HYBRID_SHARD_ZERO2
        NO_PREFETCH NO_SHARD NO_WRAP SHARDED_STATE_DICT SHARD_GRAD_OP SHARD_OPTIM_OP SIZE_BASED_WRAP
        TRANSFORMER_BASED_WRAP""",
    "values in config files of Hugging Face Accelerate": "AMAZON_SAGEMAKER LOCAL_MACHINE MEGATRON_LM MULTI_CPU MULTI_GPU",
    "dtypes in safetensors": "F8_E4M3 F8_E5M2 F8_E8M0",
    "actions of a pipeline schedule": "RECV_B RECV_F SEND_B SEND_F",
    "argument of PyTorch's scheduler": "T_0",
    "parts of errors of CUDA libraries": "CUBLAS_STATUS_ALLOC_FAILED CUDNN_STATUS_NOT_SUPPORTED",
    "key of /etc/os-release": "PRETTY_NAME",
    "beginnings of names": "GLIBC_TUN OMPI_MCA_coll OMPI_MCA_io OMPI_MCA_osc OMPI_MCA_topo XDG_CACHE",
    "parts of secret names": "JOB_ID",
    "printed by accelerate_env, not used": "LD_LIBRARY_PATH",
    "not passed to other hosts": "LS_COLORS WAYLAND_DISPLAY",
}


def is_prefix(name):
    """Names of glibc end with _, too."""
    return name.endswith("_") and not re.fullmatch(r"MALLOC_\w+_THRESHOLD_", name)


@functools.cache
def without_comments(code):
    """Raw strings are removed, too, because they contain quotes."""
    return re.sub(COMMENT_OR_TEXT, lambda match: match[0] if match[0][0] in "\"'" else " ", code, flags=re.DOTALL)


def literals_of(code):
    """Names with an underscore, and words without one that are used as a variable."""
    code = without_comments(code)
    names = {name for name in re.findall(rf'"({NAME})"', code) if not is_prefix(name)}
    words = {word for pair in re.findall(USE_OF_WORD, code) for word in pair if word}
    return names | words | {word for loop in re.findall(LOOP, code) for word in re.findall(rf'"({WORD})"', loop)}


def variables_of(page):
    """Names in the columns "variable" and "variables" of the tables."""
    names, column = set(), None
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        headings = [index for index, cell in enumerate(cells) if cell in ("variable", "variables")]
        if not line.startswith("|"):
            column = None
        elif headings:
            (column,) = headings
        elif column is not None:
            names.update(re.findall(r"`([A-Z]\w+)`", cells[column]))
    return names


def mentioned_in(page):
    """Names anywhere in the text."""
    return set(re.findall(rf"`({NAME})`", page))


def unused_prefixes(codes, pages):
    """Prefixes that only the pages contain. They are "SLURM_" in the code and `SLURM_*` in a page."""
    known = {prefix for code in codes for prefix in re.findall(r'"([A-Z][A-Z0-9_]*_)"', without_comments(code))}
    return {prefix for page in pages for prefix in re.findall(r"`([A-Z][A-Z0-9_]*_)\*`", page)} - known


def other_literals():
    return {name for names in OTHER_LITERALS.values() for name in names.split()}


def differences(codes, pages):
    """One line for each name that only the code or only the pages contain."""
    literals = set().union(*map(literals_of, codes))
    in_code, listed = literals - other_literals(), set().union(*map(variables_of, pages))
    mentioned = listed.union(*map(mentioned_in, pages))
    return ([f"{name} is in the code, and no row of the reference has it" for name in sorted(in_code - listed)] +
            [f"{name} is in the reference, and the code does not contain it" for name in sorted(mentioned - in_code)] +
            [f"{prefix}* is in the reference, and the code does not contain the prefix"
             for prefix in sorted(unused_prefixes(codes, pages))] +
            [f"{name} of OTHER_LITERALS is not in the code" for name in sorted(other_literals() - literals)])


def texts(files):
    return [file.read_text(encoding="utf-8") for file in files]


class Variables(unittest.TestCase):
    maxDiff = None  # prints every difference

    def found_with(self, code="", page=""):
        return differences([*texts(SOURCES), code], [*texts(PAGES), page])

    def test_code_and_reference_have_the_same_variables(self):
        self.assertEqual(self.found_with(), [])

    def test_enough_variables_are_read(self):
        self.assertGreater(len(set().union(*map(variables_of, texts(PAGES)))), 100)

    def test_a_variable_without_a_row_is_found(self):
        for code in ('find(variables, "ACCELERATE_INVENTED")', 'number(variables, {"SLURM_NTASKS", "ACCELERATE_INVENTED"})',
                     'constexpr const char* kName = "ACCELERATE_INVENTED";', '.variable = "ACCELERATE_INVENTED",'):
            self.assertEqual(self.found_with(code=code),
                             ["ACCELERATE_INVENTED is in the code, and no row of the reference has it"])

    def test_a_row_without_a_variable_is_found(self):
        text = "ACCELERATE_INVENTED is in the reference, and the code does not contain it"
        self.assertEqual(self.found_with(page="| variable | effect |\n|---|---|\n| `ACCELERATE_INVENTED` | none |\n"), [text])
        self.assertEqual(self.found_with(page="The launcher reads `ACCELERATE_INVENTED`.\n"), [text])
        self.assertEqual(self.found_with(page="Those with `INVENTED_*` are removed.\n"),
                         ["INVENTED_* is in the reference, and the code does not contain the prefix"])

    def test_a_variable_of_the_text_needs_a_row(self):
        self.assertEqual(differences(['getenv("ACCELERATE_INVENTED")'], ["`ACCELERATE_INVENTED` is read.\n"])[0],
                         "ACCELERATE_INVENTED is in the code, and no row of the reference has it")

    def test_only_the_column_of_the_variables_counts(self):
        page = ("| value | variables | effect |\n|---|---|---|\n| `A_B` | `C_D`, `HOME` | as `E_F` |\n\n"
                "| file |\n|---|\n| `G_H` |\n")
        self.assertEqual(variables_of(page), {"C_D", "HOME"})

    def test_words_count_if_they_are_used_as_variables(self):
        code = '''getenv("HOME"); variables.find("PATH"); find(all, "TERM"); for (const char* name : {"LC_ALL", "LANG"}) {}
                  variables["TMPDIR"] = "ERROR"; std::array names{"SHELL"};'''
        self.assertEqual(literals_of(code), {"HOME", "PATH", "TERM", "LC_ALL", "LANG", "TMPDIR"})

    def test_comments_prefixes_and_parts_of_texts_do_not_count(self):
        code = '''// "A_B"\n/* "C_D"\n"E_F" */ fail("G_H is wrong, https://x"); starts_with("SLURM_"); R"("I_J")";
                  variables["MALLOC_TRIM_THRESHOLD_"] = '"';'''
        self.assertEqual(literals_of(code), {"MALLOC_TRIM_THRESHOLD_"})


if __name__ == "__main__":
    unittest.main()
