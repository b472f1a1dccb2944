package mps

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"symmem/internal/sys"
)

// Environment variables of NVIDIA's Multi-Process Service (MPS). Its daemon lets several processes
// use a GPU at the same time.
const (
	// PipeVariable names the folder in which a daemon listens.
	PipeVariable = "CUDA_MPS_PIPE_DIRECTORY"
	// logVariable names the folder for a daemon's logs.
	logVariable = "CUDA_MPS_LOG_DIRECTORY"
	// devicesVariable lists GPUs. A daemon offers only these GPUs to its clients, for which it
	// numbers them from 0.
	devicesVariable = "CUDA_VISIBLE_DEVICES"
)

// controlProgram is part of NVIDIA's driver. It starts and stops daemons.
const controlProgram = "nvidia-cuda-mps-control"

// controlTimeout limits the start or end of a daemon, which usually takes less than a second.
const controlTimeout = 20 * time.Second

// IsRunning reports whether CUDA would try to connect to a daemon in this environment. It looks for
// a file that the daemon creates, so it does not notice if the daemon was killed.
func IsRunning(getenv func(string) string) bool {
	const defaultFolder = "/tmp/nvidia-mps"
	folder := cmp.Or(getenv(PipeVariable), defaultFolder)
	_, err := os.Stat(filepath.Join(folder, "control"))
	return err == nil
}

// Find returns the path of MPS's control program, or an error if it is not installed.
func Find() (string, error) {
	path, err := exec.LookPath(controlProgram)
	if err != nil {
		return "", fmt.Errorf("finding NVIDIA's Multi-Process Service: %w", err)
	}

	return path, nil
}

// Daemon is a running MPS daemon. It is not safe for concurrent use.
type Daemon struct {
	controlPath string   // of the control program
	controlEnv  []string // environment of the control program and the daemon
	folder      string   // folder in which the daemon listens and writes its logs
	hasDevices  bool     // controlEnv contains devicesVariable
}

// Start starts a daemon for the GPUs that are visible in env. ctx limits only the start.
func Start(ctx context.Context, env []string) (*Daemon, error) {
	path, err := Find()
	if err != nil {
		return nil, err
	}

	folder, err := os.MkdirTemp("", "symmem-mps-")
	if err != nil {
		return nil, fmt.Errorf("starting the Multi-Process Service: %w", err)
	}

	isDevices := func(entry string) bool { return strings.HasPrefix(entry, devicesVariable+"=") }
	controlEnv := removeVariables(env, PipeVariable, logVariable)
	controlEnv = append(controlEnv, PipeVariable+"="+folder, logVariable+"="+folder)
	d := &Daemon{
		controlPath: path,
		controlEnv:  controlEnv,
		folder:      folder,
		hasDevices:  slices.ContainsFunc(env, isDevices),
	}
	const noInput = ""
	err = d.runControl(ctx, noInput, "-d")
	if err == nil {
		return d, nil
	}

	err = fmt.Errorf("starting the Multi-Process Service: %w", err)
	var cleanupErr error
	if process := d.openProcess(); process != nil {
		_ = process.Close()
		cleanupErr = d.Close() // The daemon is running despite the error.
	} else {
		cleanupErr = os.RemoveAll(folder)
	}

	return nil, errors.Join(err, cleanupErr)
}

// runControl runs the control program with a standard input, and waits up to controlTimeout for its
// exit. An error contains the program's output.
//
// The output goes to a file instead of a pipe. A daemon that the program starts inherits the file,
// and would keep a pipe open.
func (d *Daemon) runControl(ctx context.Context, input string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	output, err := os.CreateTemp(d.folder, "output-")
	if err != nil {
		return err
	}
	defer output.Close()
	cmd := exec.CommandContext(ctx, d.controlPath, args...)
	cmd.Env = d.controlEnv
	cmd.Stdin = strings.NewReader(input)
	cmd.Stdout = output
	cmd.Stderr = output
	cmd.WaitDelay = time.Second                           // for copying the input, after the exit
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C must not kill the daemon.
	err = cmd.Run()
	// ErrWaitDelay means that the program has succeeded, but that its input was not copied in time.
	hasSucceeded := err == nil || errors.Is(err, exec.ErrWaitDelay)
	if hasSucceeded {
		return nil
	}

	text, _ := os.ReadFile(output.Name())
	return fmt.Errorf("%s: %w: %s", controlProgram, err, strings.TrimSpace(string(text)))
}

// Variables returns environment variables for a process that uses the daemon. If the daemon offers
// only some GPUs, the process can use the first gpuCount of these.
func (d *Daemon) Variables(gpuCount int) map[string]string {
	variables := map[string]string{PipeVariable: d.folder, logVariable: d.folder}
	if d.hasDevices {
		numbers := make([]string, gpuCount)
		for i := range numbers {
			numbers[i] = strconv.Itoa(i)
		}

		variables[devicesVariable] = strings.Join(numbers, ",")
	}

	return variables
}

// Close stops the daemon and removes its folder. Call it after all clients have exited.
func (d *Daemon) Close() error {
	process := d.openProcess()
	if process != nil {
		defer process.Close()
	}

	err := d.runControl(context.Background(), "quit\n")
	if err != nil {
		return fmt.Errorf("stopping the Multi-Process Service in %s: %w", d.folder, err)
	}

	if process == nil {
		return os.RemoveAll(d.folder)
	}

	// The control program may return while the daemon is still running and writing to the folder.
	deadlineErr := process.SetReadDeadline(time.Now().Add(controlTimeout))
	waitErr := sys.AwaitEnd(process)
	err = errors.Join(deadlineErr, waitErr)
	if err != nil {
		return fmt.Errorf("waiting for the Multi-Process Service in %s to stop: %w", d.folder, err)
	}

	return os.RemoveAll(d.folder)
}

// openProcess returns a descriptor of the daemon's process (see sys.Pidfd). It returns nil if the
// daemon has exited or has not written its process ID.
func (d *Daemon) openProcess() *os.File {
	text, err := os.ReadFile(filepath.Join(d.folder, controlProgram+".pid"))
	if err != nil {
		return nil
	}

	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return nil
	}

	pidfd, err := sys.Pidfd(pid)
	if err != nil {
		return nil
	}

	return pidfd
}

// removeVariables returns a copy of env without the given variables.
func removeVariables(env []string, names ...string) []string {
	isRemoved := func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return slices.Contains(names, name)
	}
	return slices.DeleteFunc(slices.Clone(env), isRemoved)
}
