package main

import (
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"symmem/cmd/symmem/internal/doctor"
	"symmem/internal/mps/mpstest"
	"symmem/internal/sys/systest"
)

// useOneSharedGPU provides one software GPU that ranks can share. It sets TMPDIR to a new folder,
// which it returns.
func useOneSharedGPU(t *testing.T) (folder string) {
	t.Helper()
	useSoftwareGPU(t)
	t.Setenv("SOFTGPU_DEVICES", "1")
	t.Setenv("SOFTGPU_NCCL", "23203") // version 2.32.3
	folder = t.TempDir()
	t.Setenv("TMPDIR", folder)
	return folder
}

// checkCleanup checks that the daemon was started and stopped once, and that TMPDIR (folder) is
// empty. The daemon that mpstest installs writes its commands to log.
func checkCleanup(t *testing.T, log, folder string) {
	t.Helper()
	if text, err := os.ReadFile(log); string(text) != "start of all\nquit\n" {
		t.Errorf("the daemon received the commands %q, %v; want one start and one quit", text, err)
	}
	if remaining, err := os.ReadDir(folder); err != nil || len(remaining) > 0 {
		t.Errorf("temporary files remain: %v, %v", remaining, err)
	}
}

func TestDaemonRunsWhileRanksShareGPU(t *testing.T) {
	path := symmemBinary(t) // build before the environment changes
	folder := useOneSharedGPU(t)
	log := mpstest.Install(t)
	for name, args := range map[string][]string{
		"ranks succeed":      {"verify", "--backend=nccl", "--ranks=2", "--rounds=1", "--size=1Ki"},
		"ranks fail":         {"launch", "--share-gpus", "-n", "2", "--", "false"},
		"ranks do not start": {"launch", "--share-gpus", "-n", "2", "--", folder},
		"trial of doctor":    {"doctor", "--backend=nccl", "--ranks=2"},
	} {
		t.Run(name, func(t *testing.T) {
			defer os.Remove(log)
			cmd := systest.Command(t, systest.Patience, path, args...)
			output, _ := cmd.CombinedOutput() // some of the commands fail on purpose
			if name == "ranks do not start" {
				if _, err := os.Stat(log); err == nil {
					t.Error("a daemon was started without ranks")
				}
				return
			}
			checkCleanup(t, log, folder)
			if !strings.Contains(string(output), "2 ranks share 1 GPU, side by side: results") {
				t.Errorf("output does not describe the sharing:\n%s", output)
			}
		})
	}
}

func TestBrokenDaemonIsIgnored(t *testing.T) {
	path := symmemBinary(t)
	useOneSharedGPU(t)
	mpstest.Install(t)
	t.Setenv(mpstest.FailVariable, "1")
	cmd := systest.Command(t, systest.Patience, path, "verify", "--backend=nccl", "--ranks=2",
		"--rounds=1", "--size=1Ki")
	output, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(output), "in turns (starting the Multi-Process Serv") ||
		!strings.Contains(string(output), mpstest.StartError) {
		t.Errorf("got %v, want success with a warning:\n%s", err, output)
	}
}

func TestSignalStopsDaemonAndRanks(t *testing.T) {
	path := symmemBinary(t)
	folder := useOneSharedGPU(t)
	log := mpstest.Install(t)
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(signal.String(), func(t *testing.T) {
			defer os.Remove(log)
			cmd := systest.Command(t, systest.Patience, path, "launch", "--share-gpus", "-n", "2", "--",
				"sh", "-c", "echo here; exec sleep 1000")
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if _, err := out.Read(make([]byte, 1)); err != nil { // wait until a rank runs
				t.Fatal(err)
			}
			if err := cmd.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait() // the exit code is checked below
			if code := cmd.ProcessState.ExitCode(); code != 128+int(signal) {
				t.Errorf("exit code %d, want %d", code, 128+int(signal))
			}
			checkCleanup(t, log, folder)
		})
	}
}

func TestEnvironmentOfRanksThatShareGPUs(t *testing.T) {
	for name, test := range map[string]struct {
		sharing gpuSharing
		want    []string
	}{
		"4 ranks on 1 GPU": {
			gpuSharing{ranks: 4, gpus: 1, status: doctor.GPUSharing{IsServiceRunning: true}},
			[]string{
				"CUDA_DEVICE_MAX_CONNECTIONS=16", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25", "HOME=/",
				"NCCL_MAX_CTAS=4", "NCCL_MAX_NCHANNELS=4", "NCCL_MULTI_RANK_GPU_ENABLE=1",
			},
		},
		"8 ranks on 1 GPU": {
			gpuSharing{ranks: 8, gpus: 1, status: doctor.GPUSharing{IsServiceRunning: true}},
			[]string{
				"CUDA_DEVICE_MAX_CONNECTIONS=8", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=12", "HOME=/",
				"NCCL_MAX_CTAS=4", "NCCL_MAX_NCHANNELS=4", "NCCL_MULTI_RANK_GPU_ENABLE=1",
			},
		},
		"5 ranks on 4 GPUs": {
			gpuSharing{ranks: 5, gpus: 4, status: doctor.GPUSharing{IsServiceRunning: true}},
			[]string{
				"CUDA_DEVICE_MAX_CONNECTIONS=32", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50", "HOME=/",
				"NCCL_MAX_CTAS=4", "NCCL_MAX_NCHANNELS=4", "NCCL_MULTI_RANK_GPU_ENABLE=1",
			},
		},
		"without the service, with variables of the user": {
			gpuSharing{ranks: 2, gpus: 1, userEnv: []string{"NCCL_MAX_CTAS=9", "NCCL_MAX_NCHANNELS="}},
			[]string{
				"CUDA_DEVICE_MAX_CONNECTIONS=32", "HOME=/", "NCCL_MAX_CTAS=9", "NCCL_MAX_NCHANNELS=4",
				"NCCL_MULTI_RANK_GPU_ENABLE=1",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			env := []string{
				"HOME=/", "CUDA_DEVICE_MAX_CONNECTIONS=32", "NCCL_MAX_CTAS=9", "NCCL_MAX_NCHANNELS=",
			}
			got := test.sharing.addSettings(env, nil) // no daemon was started
			slices.Sort(got)
			if !slices.Equal(got, test.want) {
				t.Errorf("environment %q, want %q", got, test.want)
			}
		})
	}
}
