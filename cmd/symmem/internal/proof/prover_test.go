package proof

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"
)

func TestDisabledProverDoesNothing(t *testing.T) {
	clearVariables(t)
	var p Prover
	var out bytes.Buffer
	err := p.Start()
	p.AddCall("AllReduce", 1, 4)
	if err := errors.Join(err, p.Write(&out, "# ")); err != nil {
		t.Error(err)
	}

	p.Close(&err)
	if out.Len() > 0 || err != nil || os.Getenv(levelVariable) != "" {
		t.Errorf("wrote %q, error %v, %s=%q; want nothing", &out, err, levelVariable,
			os.Getenv(levelVariable))
	}
}

func TestProverWritesOneLinePerCall(t *testing.T) {
	clearVariables(t)
	t.Setenv("TMPDIR", t.TempDir())
	p := Prover{Enabled: true}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}

	for range 3 {
		p.AddCall("all_gather", 8, 2)
	}

	line := "h:1:1 [0] NCCL INFO AllGather: 16 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}\n"
	if err := os.WriteFile(p.recorder.file, []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}

	var out bytes.Buffer
	if err := p.Write(&out, "# "); err != nil || out.String() != "# AllGather 16 B: plain RING/LL\n" {
		t.Errorf("wrote %q, error %v; want one line for the AllGather", &out, err)
	}

	var err error
	p.Close(&err)
	if remaining, readErr := os.ReadDir(os.Getenv("TMPDIR")); err != nil || len(remaining) > 0 {
		t.Errorf("after Close (error %v) the folder contains %v, %v; want nothing",
			err, remaining, readErr)
	}
}

func TestProverWithoutLogWritesReason(t *testing.T) {
	clearVariables(t)
	t.Setenv("TMPDIR", t.TempDir())
	t.Setenv(levelVariable, "WARN")
	p := Prover{Enabled: true}
	err := p.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close(&err)
	var out bytes.Buffer
	p.AddCall("AllReduce", 1, 4)
	if err := p.Write(&out, "# "); err != nil ||
		!strings.HasPrefix(out.String(), "# cannot determine which kernels ran: NCCL_DEBUG is WARN") {
		t.Errorf("wrote %q, error %v; want the reason", &out, err)
	}
}
