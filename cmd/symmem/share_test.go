package main

import (
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"symmem/cmd/symmem/internal/doctor"
	"symmem/internal/mps"
	"symmem/internal/mps/mpstest"
	"symmem/internal/sys/systest"
)

// If symmem starts ranks on a shared GPU, it also runs a daemon of NVIDIA's Multi-Process Service
// (MPS). In these tests, mpstest replaces the daemon with a script that logs its commands.

// useOneSharedGPU makes processes find a single software GPU, and returns a new TMPDIR.
func useOneSharedGPU(t *testing.T) (temporaryFolder string) {
	t.Helper()
	useSoftwareGPU(t)
	t.Setenv("SOFTGPU_DEVICES", "1")
	t.Setenv("SOFTGPU_NCCL", "23203") // version 2.32.3 supports sharing
	temporaryFolder = t.TempDir()
	t.Setenv("TMPDIR", temporaryFolder)
	return temporaryFolder
}

// checkCleanup checks that the daemon was started and stopped once, and that no temporary file
// remains.
func checkCleanup(t *testing.T, log, temporaryFolder string) {
	t.Helper()
	const want = "start of all\nquit\n" // "all" means all GPUs
	if text, err := os.ReadFile(log); err != nil || string(text) != want {
		t.Errorf("the daemon received the commands %q, %v; want %q", text, err, want)
	}

	if remaining, err := os.ReadDir(temporaryFolder); err != nil || len(remaining) > 0 {
		t.Errorf("temporary files remain: %v, %v", remaining, err)
	}
}

func TestDaemonRunsWhileRanksShareGPU(t *testing.T) {
	path := symmemBinary(t) // built before the environment changes
	folder := useOneSharedGPU(t)
	log := mpstest.Install(t)
	for name, args := range map[string][]string{
		"ranks succeed":   {"verify", "--backend=nccl", "--ranks=2", "--rounds=1", "--size=1Ki"},
		"ranks fail":      {"launch", "--share-gpus", "-n", "2", "--", "false"},
		"trial of doctor": {"doctor", "--backend=nccl", "--ranks=2"},
	} {
		t.Run(name, func(t *testing.T) {
			defer os.Remove(log) // the next case begins without a log
			cmd := systest.Command(t, systest.Patience, path, args...)
			output, _ := cmd.CombinedOutput() // "ranks fail" fails on purpose
			checkCleanup(t, log, folder)
			const beginOfNote = "2 ranks share 1 GPU, side by side: results"
			if !strings.Contains(string(output), beginOfNote) {
				t.Errorf("got output %q; want it to contain %q", output, beginOfNote)
			}
		})
	}

	t.Run("ranks do not start", func(t *testing.T) {
		const notAProgram = "/"
		cmd := systest.Command(t, systest.Patience, path, "launch", "--share-gpus", "-n", "2", "--",
			notAProgram)
		_, _ = cmd.CombinedOutput() // fails on purpose
		if _, err := os.Stat(log); err == nil {
			t.Error("a daemon was started without ranks")
		}
	})
}

func TestBrokenDaemonIsIgnored(t *testing.T) {
	path := symmemBinary(t) // built before the environment changes
	useOneSharedGPU(t)
	mpstest.Install(t)
	t.Setenv(mpstest.FailVariable, "1")
	cmd := systest.Command(t, systest.Patience, path, "verify", "--backend=nccl", "--ranks=2",
		"--rounds=1", "--size=1Ki")
	output, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("the command failed: %v\n%s", err, output)
	}

	for _, want := range []string{
		"in turns (starting the Multi-Process Service", // followed by the error
		mpstest.StartError,
	} {
		if !strings.Contains(string(output), want) {
			t.Errorf("the output does not contain %q:\n%s", want, output)
		}
	}
}

func TestSignalStopsDaemonAndRanks(t *testing.T) {
	path := symmemBinary(t) // built before the environment changes
	folder := useOneSharedGPU(t)
	log := mpstest.Install(t)
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(signal.String(), func(t *testing.T) {
			defer os.Remove(log) // the next case begins without a log
			code := interruptLaunch(t, path, signal)
			if want := 128 + int(signal); code != want {
				t.Errorf("exit code %d, want %d", code, want)
			}

			checkCleanup(t, log, folder)
		})
	}
}

// interruptLaunch sends a signal to a command with two endless ranks, and returns its exit code.
func interruptLaunch(t *testing.T, path string, signal syscall.Signal) (code int) {
	t.Helper()
	const rankProgram = "echo here; exec sleep 1000"
	cmd := systest.Command(t, systest.Patience, path, "launch", "--share-gpus", "-n", "2", "--",
		"sh", "-c", rankProgram)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}

	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}

	firstByte := make([]byte, 1)
	if _, err := stdout.Read(firstByte); err != nil { // blocks until a rank runs
		t.Fatal(err)
	}

	if err := cmd.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}

	_ = cmd.Wait() // the error repeats the exit code
	return cmd.ProcessState.ExitCode()
}

// The ranks of a GPU share its threads and its 64 hardware queues (connections) evenly, with at
// most 32 queues per rank. Shares are rounded down.
func TestEnvironmentOfRanksThatShareGPUs(t *testing.T) {
	env := []string{ // settings replace these variables
		"HOME=/", "CUDA_DEVICE_MAX_CONNECTIONS=32", "NCCL_MAX_CTAS=9", "NCCL_MAX_NCHANNELS=",
	}
	withMPS := doctor.GPUSharing{IsServiceRunning: true}
	for name, test := range map[string]struct {
		sharing sharingPlan
		want    []string // sorted
	}{
		"4 ranks on 1 GPU": {
			sharing: sharingPlan{rankCount: 4, gpuCount: 1, status: withMPS},
			want: []string{
				"CUDA_DEVICE_MAX_CONNECTIONS=16", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25", "HOME=/",
				"NCCL_MAX_CTAS=4", "NCCL_MAX_NCHANNELS=4", "NCCL_MULTI_RANK_GPU_ENABLE=1",
			},
		},
		"8 ranks on 1 GPU": {
			sharing: sharingPlan{rankCount: 8, gpuCount: 1, status: withMPS},
			want: []string{
				"CUDA_DEVICE_MAX_CONNECTIONS=8", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=12", "HOME=/",
				"NCCL_MAX_CTAS=4", "NCCL_MAX_NCHANNELS=4", "NCCL_MULTI_RANK_GPU_ENABLE=1",
			},
		},
		"5 ranks on 4 GPUs, at most 2 on each": {
			sharing: sharingPlan{rankCount: 5, gpuCount: 4, status: withMPS},
			want: []string{
				"CUDA_DEVICE_MAX_CONNECTIONS=32", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50", "HOME=/",
				"NCCL_MAX_CTAS=4", "NCCL_MAX_NCHANNELS=4", "NCCL_MULTI_RANK_GPU_ENABLE=1",
			},
		},
		"without MPS, with variables of the user": {
			sharing: sharingPlan{
				rankCount: 2, gpuCount: 1,
				userEnv: []string{ // variables that settings do not replace, unless empty
					"NCCL_MAX_CTAS=9",
					"NCCL_MAX_NCHANNELS=",
				},
			},
			want: []string{
				"CUDA_DEVICE_MAX_CONNECTIONS=32", "HOME=/", "NCCL_MAX_CTAS=9", "NCCL_MAX_NCHANNELS=4",
				"NCCL_MULTI_RANK_GPU_ENABLE=1",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var noDaemon *mps.Daemon
			got := test.sharing.addSettings(env, noDaemon)
			slices.Sort(got)
			if !slices.Equal(got, test.want) {
				t.Errorf("environment %q, want %q", got, test.want)
			}
		})
	}
}
