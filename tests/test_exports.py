import importlib
import subprocess
import sys
from importlib.metadata import version

import pytest

import rayeval


def test_all_is_sorted_without_repeats():
    assert list(rayeval.__all__) == sorted(set(rayeval.__all__))


@pytest.mark.parametrize("name", rayeval.__all__)
def test_each_name_is_there(name):
    assert getattr(rayeval, name) is not None


def test_all_is_exactly_what_can_be_had():
    assert set(rayeval.__all__) == set(rayeval._HOME_OF) | {"__version__"}


@pytest.mark.parametrize("name", sorted(rayeval._HOME_OF))
def test_a_name_is_its_home_modules_own(name):
    home = importlib.import_module(f"rayeval.{rayeval._HOME_OF[name]}")
    assert getattr(rayeval, name) is getattr(home, name)


def test_an_unknown_name_is_refused():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = rayeval.no_such_name


def test_dir_lists_the_lazy_names():
    assert set(rayeval.__all__) <= set(dir(rayeval))


def test_the_version_is_the_packages():
    assert rayeval.__version__ == version("rayeval")


def loaded_after(code):
    program = f"import sys\n{code}\nprint(' '.join(sorted({{m.split('.')[0] for m in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


def test_importing_the_package_loads_nothing_heavy():
    assert not loaded_after("import rayeval") & {"ray", "pydantic", "aiohttp", "pyarrow", "orjson"}


def test_importing_the_command_line_loads_nothing_heavy():
    heavy = {"ray", "actors", "pydantic", "aiohttp", "pyarrow", "rich", "httpx", "psutil"}
    assert not loaded_after("import rayeval.cli") & heavy
