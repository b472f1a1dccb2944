package main

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"symmem"
	"symmem/internal/sys/systest"
)

// verifyInNamespaces runs verify as two ranks that share a network but not a PID namespace, like
// the containers of a pod. It returns their exit codes and outputs.
func verifyInNamespaces(t *testing.T, args ...string) (codes [2]int, outputs [2]string) {
	t.Helper()
	var ranks [2]*exec.Cmd
	var buffers [2]bytes.Buffer
	run := rand.Text()
	for rank := range ranks {
		c := systest.Command(t, systest.Patience, symmemBinary(t),
			append([]string{"verify", "--cases=1", "--rounds=1", "--size=1Ki"}, args...)...)
		c.Env = append(os.Environ(), fmt.Sprint("RANK=", rank),
			fmt.Sprint("LOCAL_RANK=", rank), "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=2",
			"MASTER_ADDR=127.0.0.1", "MASTER_PORT=1", "TORCHELASTIC_RUN_ID="+run)
		c.Stdout, c.Stderr = &buffers[rank], &buffers[rank]
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
		if err := c.Start(); errors.Is(err, syscall.EPERM) {
			t.Skip(fmt.Errorf("creating PID namespaces: %w", errors.Join(err, symmem.ErrUnsupported)))
		} else if err != nil {
			t.Fatal(err)
		}

		ranks[rank] = c
	}

	for rank, c := range ranks {
		_ = c.Wait() // the caller checks the exit code
		codes[rank], outputs[rank] = c.ProcessState.ExitCode(), buffers[rank].String()
	}

	return codes, outputs
}

func TestRanksInOtherPIDNamespacesGetAdvice(t *testing.T) {
	codes, outputs := verifyInNamespaces(t, "--backend=host")
	for rank := range outputs {
		if codes[rank] != exitIncomplete ||
			!strings.Contains(outputs[rank], "shareProcessNamespace: true") ||
			strings.Contains(outputs[rank], "lost") {
			t.Errorf("rank %d: exit code %d; want 2 and advice\n%s", rank, codes[rank], outputs[rank])
		}
	}
}

func TestRanksInOtherPIDNamespacesWorkOnGPUs(t *testing.T) {
	useSoftwareGPU(t)
	codes, outputs := verifyInNamespaces(t, "--backend=nccl")
	for rank := range outputs {
		if codes[rank] != exitOK {
			t.Errorf("rank %d: exit code %d; want 0\n%s", rank, codes[rank], outputs[rank])
		}
	}
}
