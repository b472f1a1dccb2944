package doctor

import (
	"bufio"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Variable is a variable that affects symmem, NCCL or CUDA.
type Variable struct {
	Name string `json:"name"`
	// Value is its value; values of secrets are hidden.
	Value string `json:"value"`
	// File is the NCCL configuration file that sets it, or empty for the environment.
	File string `json:"file,omitempty"`
}

// families lists the prefixes of relevant names.
var families = []string{"NCCL_", "CUDA_", "SYMMEM_", "TORCH_", "TORCHELASTIC_", "PYTORCH_"}

// LookAtVariables lists the relevant variables of an environment in the format of os.Environ, and
// of NCCL's configuration files. The environment takes precedence over the files.
func LookAtVariables(environ []string) []Variable {
	all := []Variable{}
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		if matters(name) {
			all = append(all, Variable{Name: name, Value: shown(name, value)})
		}
	}
	for _, file := range files() {
		for _, v := range readFile(file) {
			known := func(other Variable) bool { return other.Name == v.Name }
			if !slices.ContainsFunc(all, known) {
				all = append(all, v)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b Variable) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

func matters(name string) bool {
	return slices.ContainsFunc(families, func(beginning string) bool {
		return strings.HasPrefix(name, beginning)
	})
}

func shown(name, value string) string {
	if strings.Contains(name, "TOKEN") && value != "" {
		return "(hidden)"
	}
	return value
}

// files lists the files from which NCCL reads variables, in order of precedence
// (src/misc/param.cc).
func files() []string {
	first := os.Getenv("NCCL_CONF_FILE")
	if home, err := os.UserHomeDir(); first == "" && err == nil {
		first = filepath.Join(home, ".nccl.conf")
	}
	return []string{first, "/etc/nccl.conf"}
}

// readFile parses lines of NAME=VALUE as NCCL does. It returns nil if the file does not exist.
func readFile(name string) []Variable {
	file, err := os.Open(name)
	if err != nil {
		return nil
	}
	defer file.Close()
	var all []Variable
	for lines := bufio.NewScanner(file); lines.Scan(); {
		key, value, ok := strings.Cut(lines.Text(), "=")
		if ok && !strings.HasPrefix(key, "#") {
			all = append(all, Variable{Name: key, Value: shown(key, value), File: name})
		}
	}
	return all
}

// concern describes the effect of a value of a variable.
type concern struct {
	name string
	// values lists the values with that effect; nil means any.
	values []string
	text   string
	// advice suggests a remedy. Without advice the effect is only worth knowing.
	advice string
}

const leaveOut = "leave it out, unless you want that"

// off lists the values that NCCL reads as 0.
var off = []string{"0"}

// concerns lists the variables known to affect whether windows are used or can be observed, and
// other effects worth knowing.
var concerns = []concern{
	{"NCCL_WIN_ENABLE", off, "switches windows off: every collective takes the plain path", leaveOut},
	{
		"NCCL_CUMEM_ENABLE", off, "keeps NCCL from virtual memory management, and so from windows",
		leaveOut,
	},
	{
		"NCCL_P2P_DISABLE", []string{"1"}, "keeps GPUs from each other's memory, and most versions " +
			"of NCCL from kernels over windows", leaveOut,
	},
	{
		"NCCL_P2P_LEVEL", []string{"LOC", "0"}, "keeps GPUs from each other's memory, and NCCL from " +
			"kernels over windows", leaveOut,
	},
	{
		"NCCL_HOSTID", nil, "makes ranks with different values count as those of different machines, " +
			"which have windows only if NCCL has a network for it", leaveOut,
	},
	{
		"NCCL_LOCAL_REGISTER", off, "makes NCCL 2.27 give no windows where it has no symmetric memory",
		leaveOut,
	},
	{
		"NCCL_LSA_TEAM_SIZE", nil, "splits the ranks whose memory NCCL maps, and with them the " +
			"groups that have kernels over windows", leaveOut,
	},
	{
		"NCCL_SYM_KERNEL", nil, "allows only some kernels over windows: a call that none of them " +
			"can do is an error", leaveOut,
	},
	{
		"NCCL_RUNTIME_CONNECT", []string{"1"}, "makes NCCL connect at the first collective, so a " +
			"launch can wait for ranks that have not come", "leave it out: symmem sets it to 0",
	},
	{
		"NCCL_COMM_BLOCKING", off, "makes calls of NCCL return before they are done, which symmem " +
			"does not expect", "leave it out",
	},
	{
		"NCCL_DEBUG", []string{"VERSION", "WARN", "ABORT"}, "keeps NCCL from logging which kernels it " +
			"takes, which --prove needs", "leave it out, or make it INFO",
	},
	{
		"NCCL_IPC_USE_ABSTRACT_SOCKET", off, "makes NCCL hand memory over by files in /tmp, which " +
			"all ranks need to see", leaveOut,
	},
	{
		"SYMMEM_PATH", []string{"plain"}, "makes every collective take the plain path", leaveOut,
	},
	{
		"CUDA_LAUNCH_BLOCKING", []string{"1"}, "makes each launch wait for its end: everything is " +
			"slow, and ranks that wait for each other may hang", "leave it out",
	},
	{
		"CUDA_VISIBLE_DEVICES",
		[]string{"", "-1", "NoDevFiles"},
		"hides every GPU",
		"leave it out, or name GPUs",
	},
	{name: "NCCL_DEBUG_FILE", text: "is where --prove and the trial read NCCL's log"},
	{name: "NCCL_DEBUG_SUBSYS", text: "needs TUNING in it for --prove and the trial"},
	{name: "NCCL_ALGO", text: "does not affect kernels over windows"},
	{name: "NCCL_PROTO", text: "does not affect kernels over windows"},
	{
		name: "NCCL_NVLS_ENABLE", values: off,
		text: "keeps NCCL from NVLink multicast, which symmem does not need",
	},
	{name: "SYMMEM_BACKEND", text: "names the backend"},
	{name: "SYMMEM_TOKEN", text: "keeps strangers out of the store"},
	{name: "SYMMEM_TUNING", text: "names the table that chooses paths"},
	{
		name: "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK", values: []string{"1", "true"},
		text: "makes PyTorch register its own segments with its own communicators, not with symmem's",
	},
}

func (c *concern) fits(v *Variable) bool {
	return c.name == v.Name && (len(c.values) == 0 || slices.ContainsFunc(c.values,
		func(value string) bool { return strings.EqualFold(value, strings.TrimSpace(v.Value)) }))
}

func judgeVariables(f *Facts, s *Section) {
	for i := range f.Variables {
		f.Variables[i].judge(f.Asked, s)
	}
	if len(s.Findings) == 0 {
		s.ok("nothing of NCCL, CUDA, PyTorch or symmem is set")
	}
}

// judge describes the effect of a variable. Variables of NVIDIA do not affect the host backend.
func (v *Variable) judge(asked string, s *Section) {
	setting := fmt.Sprintf("%s=%s", v.Name, v.Value)
	if v.File != "" {
		setting += " of " + v.File
	}
	at := slices.IndexFunc(concerns, func(c concern) bool { return c.fits(v) })
	switch ours := strings.HasPrefix(v.Name, "SYMMEM_"); {
	case at >= 0 && concerns[at].advice == "":
		s.ok("%s %s", setting, concerns[at].text)
	case at >= 0 && (ours || asked != "host"):
		s.add(Warn, concerns[at].advice, "%s %s", setting, concerns[at].text)
	default:
		s.ok("%s", setting)
	}
}
