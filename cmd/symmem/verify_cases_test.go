package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"symmem/internal/rendezvous"
)

// logCloser closes the temporary file of NCCL's log when runCases prints its first error, so that
// emptying the log fails afterwards.
type logCloser struct {
	bytes.Buffer
	t        *testing.T
	isClosed bool
}

func (c *logCloser) Write(b []byte) (int, error) {
	if !c.isClosed {
		c.isClosed = true
		var pid, fd int
		if _, err := fmt.Sscanf(os.Getenv("NCCL_DEBUG_FILE"), "/proc/%d/fd/%d", &pid, &fd); err != nil {
			c.t.Error(err)
		} else if err := syscall.Close(fd); err != nil {
			c.t.Error(err)
		}
	}

	return c.Buffer.Write(b)
}

// TestErrorOfLogIsPrintedAfterFailure makes a run fail, and then the end of --prove. Both errors
// must be printed.
func TestErrorOfLogIsPrintedAfterFailure(t *testing.T) {
	for _, variable := range []string{"NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"} {
		t.Setenv(variable, "")
	}

	f := &verifyFlags{}
	f.caseConfig.Backend = "none"
	f.prover.Enabled = true
	stderr := &logCloser{t: t}
	err := f.runCases(t.Context(), rendezvous.World{}, &bytes.Buffer{}, stderr)
	exit, isExit := errors.AsType[*exitError](err)
	if !isExit || exit.code != exitIncomplete {
		t.Errorf("runCases = %v; want exit code %d", err, exitIncomplete)
	}

	text := stderr.String()
	if strings.Count(text, "[rank 0] ") != 2 || !strings.Contains(text, "emptying NCCL's log") {
		t.Errorf("standard error = %q; want two errors, one about NCCL's log", text)
	}
}
