package systest

import (
	"os"
	"strings"
	"testing"
	"time"
)

const hangVariable = "SYMMEM_TEST_HANG"

func waitHere() { select {} }

func TestHangingProcessPrintsStacks(t *testing.T) {
	if os.Getenv(hangVariable) != "" {
		waitHere()
	}

	c := Command(t, time.Second, os.Args[0], "-test.run=^"+t.Name()+"$")
	c.Env = append(os.Environ(), hangVariable+"=1")
	output, err := c.CombinedOutput()
	if err == nil || !strings.Contains(string(output), "systest.waitHere(") {
		t.Errorf("CombinedOutput = %v, want an error and the stack of waitHere:\n%s", err, output)
	}
}

func TestWaitReturnsIfOutputStaysOpen(t *testing.T) {
	c := Command(t, Patience, "sh", "-c", "sleep 1000 & echo $!")
	c.WaitDelay = 100 * time.Millisecond
	output, err := c.Output()
	if err == nil {
		t.Error("Output returned no error although the child still had the output open")
	}

	if kill := Command(t, Patience, "kill", strings.TrimSpace(string(output))); kill.Run() != nil {
		t.Errorf("killing process %q failed, want it to be still running", output)
	}
}
