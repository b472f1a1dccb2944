package doctor

import (
	"strings"
	"testing"

	"symmem/internal/mps/mpstest"
)

func TestInspectSharing(t *testing.T) {
	empty := t.TempDir()
	for name, test := range map[string]struct {
		gpu        GPU
		library    *Library
		setting    string
		hasService bool
		want       string
	}{
		"NCCL 2.30":                {library: &Library{Version: 23003, Text: "2.30.3"}},
		"NCCL chosen by the ranks": {},
		"no NCCL":                  {library: &Library{Error: "no NCCL"}, want: "no NCCL"},
		"permitted by the user":    {setting: "1"},
		"prohibited by the user":   {setting: "0", want: "NCCL_MULTI_RANK_GPU_ENABLE=0 prohibits it"},
		"NCCL 2.29":                {library: &Library{Version: 22907, Text: "2.29"}, want: "NCCL 2.29"},
		"exclusive GPU":            {gpu: GPU{IsExclusive: true}, want: "GPU 0 admits only one process"},
		"exclusive GPU with MPS":   {gpu: GPU{IsExclusive: true}, hasService: true},
		"prohibited GPU":           {gpu: GPU{IsProhibited: true}, hasService: true, want: "prohibited"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("PATH", empty)
			if test.hasService {
				mpstest.Install(t)
			}

			s := InspectSharing([]GPU{test.gpu}, test.library, func(name string) string {
				if name == SharingVariable {
					return test.setting
				}

				return empty
			})
			if (s.Obstacle == "") != (test.want == "") || !strings.Contains(s.Obstacle, test.want) {
				t.Errorf("Obstacle = %q, want %q", s.Obstacle, test.want)
			}
		})
	}
}
