package proof

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
)

// WhyNoWindows returns why the last communicator in the log has no windows, or "".
func (r *Recorder) WhyNoWindows() (string, error) {
	file, err := os.Open(r.file)
	if err != nil {
		return "", fmt.Errorf("reading NCCL's log: %w", err)
	}
	defer file.Close()
	return whyNoWindows(file)
}

// Messages of NCCL. NCCL up to 2.30 logs unsupportedMessage only if a communicator has no windows.
var (
	messagePrefix = regexp.MustCompile(` NCCL (?:INFO|WARN) `)

	nodesMessage       = regexp.MustCompile(`^comm \S+ rank \d+ nRanks \d+ nNodes (\d+) `)
	unsupportedMessage = regexp.MustCompile(
		`^(?:Symmetric memory is not supported\. |symmetricSupport 0, )`)
	supportField = regexp.MustCompile(`(\w+) (-?\d+)`)
)

// support holds what a log contains about windows. A window between machines needs GIN, NCCL's
// communication that kernels start.
type support struct {
	isMultiNode      bool
	fields           map[string]string // from unsupportedMessage, or nil
	isPluginMissing  bool
	isGDRCopyMissing bool
	skippedType      string // the NCCL_GIN_TYPE that excludes a plug-in
}

func whyNoWindows(log io.Reader) (string, error) {
	var s support
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if prefix := messagePrefix.FindStringIndex(lines.Text()); prefix != nil {
			s.add(lines.Text()[prefix[1]:])
		}
	}
	if err := lines.Err(); err != nil {
		return "", fmt.Errorf("reading NCCL's log: %w", err)
	}
	return s.reason(), nil
}

func (s *support) add(message string) {
	if nodes := nodesMessage.FindStringSubmatch(message); nodes != nil {
		s.isMultiNode = nodes[1] != "1"
	}
	switch {
	case unsupportedMessage.MatchString(message):
		s.fields = map[string]string{}
		for _, field := range supportField.FindAllStringSubmatch(message, -1) {
			s.fields[field[1]] = field[2]
		}
	case strings.HasPrefix(message, "symmetricSupport "):
		s.fields = nil
	case strings.HasSuffix(message, "GIN/Plugin: Failed to initialize any GIN plugin"):
		s.isPluginMissing = true
	case strings.Contains(message, "RMA/Socket") && strings.Contains(message, "requires GDRCopy"):
		s.isGDRCopyMissing = true
	case strings.HasPrefix(message, "GIN/Plugin: Skipping plugin"):
		if _, value, ok := strings.Cut(message, "NCCL_GIN_TYPE="); ok {
			s.skippedType, _, _ = strings.Cut(value, " ")
		}
	}
}

func (s *support) reason() string {
	gin, hasGIN := s.fields["globalGinSupport"]
	if old, ok := s.fields["ginSupport"]; ok {
		gin, hasGIN = old, true
	}
	switch {
	case s.fields == nil:
		return ""
	case s.fields["cuMemEnable"] == "0":
		return "cuMem is disabled (NCCL_CUMEM_ENABLE)"
	case !s.isMultiNode || !hasGIN || gin != "0":
		return "NCCL does not say why. Possible reasons: some GPUs of a machine cannot access each " +
			"other's memory (P2P), or NCCL_WIN_ENABLE is 0"
	case s.isGDRCopyMissing:
		return "windows between machines need GIN, which over sockets needs GDRCopy (libgdrapi.so)"
	case s.skippedType != "":
		return "windows between machines need GIN, and NCCL_GIN_TYPE=" + s.skippedType +
			" excludes a plug-in that NCCL has found"
	case s.isPluginMissing:
		return "windows between machines need GIN, and NCCL found no GIN plug-in"
	case s.fields["cuMemGdrSupport"] == "0":
		return "windows between machines need GIN, which needs GPUDirect RDMA with memory of cuMemCreate"
	}
	return "windows between machines need GIN, but only some ranks have it, or ranks have different " +
		"types of it"
}
