package sys

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"symmem/internal/sys/systest"
)

const takeVariable = "SYS_TEST_TAKE_STDOUT"

// writeAll writes to standard output as a library, as a child process, and as the caller of
// TakeStdout.
func writeAll() error {
	stdout, err := TakeStdout()
	if err != nil {
		return err
	}

	fmt.Println("a library")
	child := exec.Command("echo", "a child")
	child.Stdout = os.Stdout
	_, err = fmt.Fprintln(stdout, "the report")
	return errors.Join(child.Run(), err)
}

func TestTakeStdout(t *testing.T) {
	if os.Getenv(takeVariable) != "" {
		check(t, writeAll())
		os.Exit(0)
	}

	cmd := systest.Command(t, systest.Patience, os.Args[0], "-test.run=^TestTakeStdout$")
	cmd.Env = append(os.Environ(), takeVariable+"=1")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	stdout, err := cmd.Output()
	check(t, err)
	if string(stdout) != "the report\n" || stderr.String() != "a library\na child\n" {
		t.Errorf("got %q on standard output and %q on standard error; want only the report on "+
			"standard output", stdout, &stderr)
	}
}

func TestTakenStdoutWithoutReader(t *testing.T) {
	if os.Getenv(takeVariable) != "" {
		stdout, err := TakeStdout()
		check(t, err)
		if _, err := stdout.WriteString("without a reader"); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("WriteString to a pipe without a reader = %v, want EPIPE", err)
		}

		return
	}

	cmd := systest.Command(t, systest.Patience, os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), takeVariable+"=1")
	reader, writer, err := os.Pipe()
	check(t, err)
	check(t, reader.Close())
	defer writer.Close()
	cmd.Stdout = writer
	check(t, cmd.Run())
}
