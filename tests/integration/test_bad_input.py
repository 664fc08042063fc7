"""What a user may get wrong at the start, on the real binary: one clear sentence and the right exit code (2 options,
3 resources, 4 files). Ranges of single flags are in test_options.py."""

import json
import os
import re
import signal
import socket
import subprocess

import pytest
import write_tiny_model
from gguf_writer import STRING, UINT32, Gguf
from harness import CODE, free_port, sanitizer_of

OPTIONS, RESOURCES, FILES = 2, 3, 4


def sentence_of(binary, code, *args, environment=None, timeout=60, **process):
    """Runs to the end; its one sentence. Nothing else but log lines is printed, and nothing on standard output."""
    run = subprocess.run([binary, *args], capture_output=True, text=True, timeout=timeout,
                         env={**os.environ, **(environment or {})}, **process)
    lines = run.stderr.splitlines()
    sentences = [line for line in lines if line.startswith("longspan-server: ")]
    assert run.returncode == code, (args, run.returncode, run.stderr)
    assert len(sentences) == 1 and lines[-1] == sentences[0], run.stderr
    assert all(line[:4].isdigit() and line[4] == "-" for line in lines[:-1]), run.stderr  # log lines have a time
    assert run.stdout == "" and 20 < len(sentences[0]) < 600, run
    return sentences[0]


def quiet(**flags):
    """Arguments of a server that picks its own ports."""
    values = {"listen": "127.0.0.1:0", "admin-listen": "off", "metrics-listen": "off",
              **{name.replace("_", "-"): value for name, value in flags.items()}}
    return [part for name, value in values.items() for part in (f"--{name}", str(value))]


@pytest.mark.parametrize("args, words", [
    ([], ["--model"]),
    (["--model"], ["--model"]),
    (["--model", ""], ["--model"]),
    (["--modle", "x"], ["--modle"]),
    (["--model", "x", "stray"], ["stray"]),
    (["--model", "x", "-q"], ["-q"]),
    (["--model", "x", "--block-size"], ["--block-size"]),
    (["--model", "x", "--block-size", "many"], ["--block-size", "many"]),
    (["--model", "x", "--log-level", "loud"], ["--log-level", "loud", "info"]),
    (["--model", "x", "--listen", "nowhere"], ["--listen", "HOST:PORT"]),
    (["--model", "x", "--listen", "127.0.0.1:70000"], ["--listen"]),
    (["--model", "x", "--listen", "unix:"], ["--listen"]),
    (["--model", "x", "--admin-listen", "unix:/" + "x" * 200], ["--admin-listen"]),
    (["--model", "x", "--kv-blocks", "4", "--kv-cache-memory-bytes", "1MiB"], ["--kv-blocks"]),
    (["--model", "x", "--config", "/nowhere/longspan.toml"], ["/nowhere/longspan.toml"]),
])
def test_BadFlags(launch, args, words):
    sentence = sentence_of(launch.binary, OPTIONS, *args)
    assert all(word in sentence for word in words), sentence


def test_BadEnvironmentAndBadConfigFile(launch, tmp_path):
    sentence = sentence_of(launch.binary, OPTIONS, "--model", "x", environment={"LONGSPAN_BLOCK_SIZE": "0"})
    assert "LONGSPAN_BLOCK_SIZE" in sentence and "1..256" in sentence
    path = tmp_path / "longspan.toml"
    for text, word in (("blok-size = 4\n", "blok-size"), ("block-size = 0\n", "block-size"),
                       ("block-size = [1, 2]\n", "block-size"), ("[section]\nblock-size = 4\n", "section"),
                       ("block-size\n", "block-size")):
        path.write_text(text)
        sentence = sentence_of(launch.binary, OPTIONS, "--model", "x", "--config", str(path))
        assert word in sentence and str(path) in sentence, sentence


def test_MissingFiles(launch, tmp_path):
    os.makedirs(tmp_path / "empty")
    for path in (tmp_path / "nowhere", tmp_path / "nowhere.gguf", tmp_path / "empty", "/dev/null"):
        assert str(path) in sentence_of(launch.binary, FILES, *quiet(model=path))
    (tmp_path / "zero.gguf").write_bytes(b"")
    assert "zero.gguf" in sentence_of(launch.binary, FILES, *quiet(model=tmp_path / "zero.gguf"))
    folder = str(tmp_path / "toy")
    write_tiny_model.write_model("toy_t", folder)
    for name in ("model.safetensors", "config.json"):
        os.rename(os.path.join(folder, name), os.path.join(folder, "away"))
        assert folder in sentence_of(launch.binary, FILES, *quiet(model=folder))
        os.rename(os.path.join(folder, "away"), os.path.join(folder, name))
    with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as file:
        file.write('{"model": ')
    assert folder in sentence_of(launch.binary, FILES, *quiet(model=folder))


def test_TruncatedGguf(launch, tmp_path):
    good = Gguf()
    whole = good.build()
    path = tmp_path / "model.gguf"
    path.write_bytes(whole)
    assert subprocess.run([launch.binary, *quiet(model=path), "--check"], timeout=60).returncode == 0
    head = len(good.header)
    keys_end = head + len(good.keys)
    table_end = keys_end + len(good.table)
    for size in (1, 3, 4, 7, 8, 15, head, head + 5, keys_end - 1, keys_end, keys_end + 9, table_end - 1, table_end,
                 len(whole) - len(good.data) + 1, len(whole) // 2, len(whole) - 4096, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert str(path) in sentence_of(launch.binary, FILES, *quiet(model=path)), size
    for kind, other in (("magic", Gguf(magic=b"GGML")), ("version", Gguf(version=1)), ("version", Gguf(version=4))):
        path.write_bytes(other.build())
        sentence = sentence_of(launch.binary, FILES, *quiet(model=path))
        assert str(path) in sentence and (kind in sentence.lower() or "GGUF" in sentence), sentence


def test_WrongArchitecture(launch, tmp_path):
    path = tmp_path / "model.gguf"
    for changes, word in (({"general.architecture": (STRING, "mamba")}, "mamba"),
                          ({"tokenizer.ggml.pre": (STRING, "chameleon")}, "chameleon"),
                          ({"llama.attention.head_count": (UINT32, 5)}, "5"),
                          ({"llama.block_count": (UINT32, 3)}, "blk.2")):
        path.write_bytes(Gguf(changes=changes).build())
        sentence = sentence_of(launch.binary, FILES, *quiet(model=path))
        assert word in sentence and str(path) in sentence, sentence
    folder = str(tmp_path / "hf")
    write_tiny_model.write_model("toy_t", folder)
    config_path = os.path.join(folder, "config.json")
    with open(config_path, encoding="utf-8") as file:
        config = json.load(file)
    for change, word in (({"architectures": ["MambaForCausalLM"], "model_type": "mamba"}, "Mamba"),
                         ({"architectures": []}, "architectures"), ({"hidden_act": "gelu"}, "gelu"),
                         ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic"),
                         ({"quantization_config": {"quant_method": "awq"}}, "quantization_config")):
        write_tiny_model.write_json(config_path, {**config, **change})
        sentence = sentence_of(launch.binary, FILES, *quiet(model=folder))
        assert word in sentence and "config.json" in sentence, sentence


def shard(folder, number):
    return os.path.join(folder, f"model-{number:05d}-of-00003.safetensors")


def test_Case_050_ShardsThatAreNotWhatTheIndexSays(launch, tmp_path):
    """Missing, renamed, cut, swapped, and a tensor in no shard: refused by name. A shard too many: a warning."""

    def fresh(name):
        folder = str(tmp_path / name)
        write_tiny_model.write_model("toy_t", folder, shards=3)
        return folder

    def refused(folder, word):
        assert word in sentence_of(launch.binary, FILES, *quiet(model=folder)), word

    folder = fresh("missing")
    os.remove(shard(folder, 2))
    refused(folder, "model-00002-of-00003.safetensors")
    folder = fresh("renamed")
    os.rename(shard(folder, 2), os.path.join(folder, "model-2.safetensors"))
    refused(folder, "model-00002-of-00003.safetensors")
    for number in (1, 2, 3):
        for cut in (1, 4096):
            folder = fresh(f"cut-{number}-{cut}")
            os.truncate(shard(folder, number), os.path.getsize(shard(folder, number)) - cut)
            refused(folder, f"model-0000{number}-of-00003.safetensors")
    folder = fresh("swapped")
    os.rename(shard(folder, 1), os.path.join(folder, "x"))
    os.rename(shard(folder, 2), shard(folder, 1))
    os.rename(os.path.join(folder, "x"), shard(folder, 2))
    refused(folder, "model.safetensors.index.json")
    folder = fresh("ghost")
    index = os.path.join(folder, "model.safetensors.index.json")
    with open(index, encoding="utf-8") as file:
        content = json.load(file)
    content["weight_map"]["model.ghost.weight"] = "model-00002-of-00003.safetensors"
    write_tiny_model.write_json(index, content)
    refused(folder, "model.ghost.weight")
    folder = fresh("unlisted")
    with open(os.path.join(folder, "extra.safetensors"), "wb") as file:
        file.write(b"not even a header")
    run = subprocess.run([launch.binary, *quiet(model=folder), "--check"], capture_output=True, text=True, timeout=60)
    warnings = [line for line in run.stderr.splitlines() if " warn" in line and "extra.safetensors" in line]
    assert run.returncode == 0 and len(warnings) == 1, run.stderr


def test_AddressesInUse(launch, toy, tmp_path):
    """Any of the three listeners of a running server, and a port of somebody else's; the first is unaffected."""
    admin = f"unix:{tmp_path}/admin"
    with launch(toy, listen=f"127.0.0.1:{free_port()}", admin_listen=admin) as first:
        first.remember_canary()
        for flag, address in (("listen", first.address), ("metrics_listen", first.metrics_address),
                              ("admin_listen", admin)):
            sentence = sentence_of(launch.binary, RESOURCES, *quiet(model=toy, **{flag: address}))
            assert address.removeprefix("unix:") in sentence, sentence
        first.check_health()
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = "127.0.0.1:%d" % other.getsockname()[1]
        assert address in sentence_of(launch.binary, RESOURCES, *quiet(model=toy, listen=address))
    # An address that is not ours, and a folder that is not there.
    foreign = "192.0.2.1:5000"
    assert foreign in sentence_of(launch.binary, RESOURCES, *quiet(model=toy, listen=foreign), "--insecure-bind")
    assert "/nowhere/" in sentence_of(launch.binary, RESOURCES, *quiet(model=toy, listen="unix:/nowhere/socket"))


def advised_blocks(sentence):
    """The largest --kv-blocks that fits, as the sentence has it."""
    found = re.search(r"at most (?:--kv-blocks )?(\d+)", sentence)
    assert found, sentence
    return int(found.group(1))


@pytest.mark.parametrize("address_space", [None, 400_000_000])
def test_Fault_D1_TheAdvisedNumberOfBlocksStarts(launch, toy, address_space):
    """What is needed, what there is, and the largest number that fits; whoever follows the advice gets there. The
    first one speaks of the pool, a later one of what weights and the rest leave it."""
    limited = [] if address_space is None else ["prlimit", f"--as={address_space}"]
    if limited and sanitizer_of(launch.binary):
        pytest.skip("a limit of address space means nothing under a sanitizer")
    blocks = 1_000_000_000
    for _ in range(4):
        args = [launch.binary, *quiet(model=toy, block_size=256, kv_blocks=blocks, threads=1), "--check",
                "--no-poison-freed"]  # which would touch all of it
        run = subprocess.run([*limited, *args], capture_output=True, text=True, timeout=60)
        if run.returncode == 0:
            break
        sentence = sentence_of(*([limited[0], RESOURCES, *limited[1:], *args] if limited else
                                 [args[0], RESOURCES, *args[1:]]))
        figures = [int(n) for n in re.findall(r"\d+", sentence)]
        assert len(figures) >= 3 and blocks * 64 * 1024 in figures, "what it needs, among what there is and what fits"
        assert 0 < advised_blocks(sentence) < blocks, sentence
        blocks = advised_blocks(sentence)
    assert run.returncode == 0, run.stderr
    assert blocks > 100, "most of what there is can be used"


@pytest.mark.parametrize("megabytes", [60, 80, 100, 130, 140, 160, 180, 199, 250, 300, 350])
def test_Fault_D1_TooLittleAddressSpaceForTheProcessItself(launch, toy, megabytes):
    """Libraries and stacks of threads do not fit: a sentence with what there is and what is needed, within 10 s. With
    less than some 60 MB the allocator says a line of its own before; with less than 45 MB the dynamic linker (exit code
    127) or the allocator ends the process before main begins, and nothing of ours can be said."""
    if sanitizer_of(launch.binary):
        pytest.skip("a limit of address space means nothing under a sanitizer")
    limit = megabytes * 1_000_000
    sentence = sentence_of("prlimit", RESOURCES, f"--as={limit}", launch.binary,
                           *quiet(model=toy, kv_blocks=64, threads=1), timeout=10)
    have, need = [int(n) for n in re.findall(r"\d{8,}", sentence)]
    assert "address space" in sentence and have == limit < need <= 1 << 30


@pytest.mark.parametrize("address_space", [450_000_000, 600_000_000, 750_000_000])
def test_Fault_D1_NoMemoryForTheWeightsIsNoCrash(launch, tmp_path, address_space):
    """Some 500 MB of weights and too little room for them, or for the pool before them."""
    if sanitizer_of(launch.binary):
        pytest.skip("a limit of address space means nothing under a sanitizer")
    config = write_tiny_model.llama_config(hidden_size=1024, intermediate_size=4096, num_hidden_layers=16,
                                           num_attention_heads=16, num_key_value_heads=16, head_dim=64,
                                           torch_dtype="bfloat16")
    write_tiny_model.write_json(str(tmp_path / "config.json"), config)
    flags = quiet(model=tmp_path, load_format="dummy", threads=1, kv_blocks=64)
    sentence = sentence_of("prlimit", RESOURCES, f"--as={address_space}", launch.binary, *flags)
    assert "memory" in sentence or "KV pool" in sentence


def skip_without_file_size_limits(binary):
    if sanitizer_of(binary) == "ThreadSanitizer":
        pytest.skip("ThreadSanitizer writes to files of its own before main ignores SIGXFSZ; the rest of the test held")


def test_ReadyFileThatIsSomebodyElses(launch, toy, tmp_path):
    """A device or a pipe of that name is left alone."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, "/dev/null"):
        sentence = sentence_of(launch.binary, FILES, *quiet(model=toy, ready_file=path))
        assert str(path) in sentence and "regular" in sentence, sentence
    assert pipe.is_fifo() and os.path.exists("/dev/null")


def test_FilesThatCannotBeWritten(launch, toy, tmp_path):
    sentence = sentence_of(launch.binary, FILES, *quiet(model=toy, ready_file="/nowhere/ready"))
    assert "/nowhere/ready" in sentence
    # A file system that takes no byte more (a file size limit of zero stands for the full disk).
    skip_without_file_size_limits(launch.binary)
    ready = tmp_path / "ready"
    sentence = sentence_of("prlimit", FILES, "--fsize=0", launch.binary, *quiet(model=toy, ready_file=ready))
    assert str(ready) in sentence and not ready.exists()


def test_FullDiskForLogsKeepsTheExitCode(launch, toy, tmp_path):
    """Nothing can be printed, and the exit code still says what was wrong."""
    failures = [(OPTIONS, {"block_size": 0}), (FILES, {"model": "/nowhere"}), (RESOURCES, {"kv_blocks": 2_000_000_000})]
    for code, flags in failures:
        with open("/dev/full", "w", encoding="utf-8") as full:
            run = subprocess.run([launch.binary, *quiet(**{"model": toy, **flags})], stdout=full, stderr=full,
                                 timeout=60)
        assert run.returncode == code
    skip_without_file_size_limits(launch.binary)
    for code, flags in failures:
        with open(tmp_path / "log", "wb") as log:
            run = subprocess.run(["prlimit", "--fsize=0", launch.binary, *quiet(**{"model": toy, **flags})],
                                 stdout=log, stderr=log, timeout=60)
        assert run.returncode == code


@pytest.mark.parametrize("where", ["/dev/full", ">(head -n 1 > /dev/null)", ">(exec sleep 60)"],
                         ids=["full", "pipe", "unread"])
def test_Fault_D9_ServesWhileItsLogsCannotBeWritten(launch, toy, where):
    """From the start on, once the reader of the pipe has gone, or stands still: requests are answered and SIGTERM ends with 0."""
    with launch(toy) as server:
        server.remember_canary()
        canary = server.canary
    redirected = ("bash", "-c", f'exec "$@" > {where} 2>&1', "bash")
    fills = 64 * 1024 // 100 if "sleep" in where else 50  # requests; each leaves a line and more
    with launch(toy, launcher=redirected, log_level="debug") as server:
        server.canary = canary
        for i in range(fills):
            assert len(server.generate([i % 500], 1).ids()) == 1
            assert server.generate([600], 3).code == CODE.INVALID_ARGUMENT
        server.check_health()
        server.signal(signal.SIGTERM)
        assert server.wait_exit() == 0
        assert server.log_text() == ""
