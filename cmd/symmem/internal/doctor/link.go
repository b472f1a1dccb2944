package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"symmem/internal/cuda"
)

// Links describes the connections between the GPUs of a machine: NVLink, or the slower PCI Express.
type Links struct {
	// ActiveNVLinks contains the number of active NVLinks of each GPU. It is nil if unknown.
	ActiveNVLinks []int `json:"nvlinks_up"`
	// Pairs contains all pairs, in both orders, of GPUs that the driver can open.
	Pairs []Pair `json:"pairs"`
	// NVMLError is an error of NVML, NVIDIA's management library, or empty.
	NVMLError string `json:"nvml_error,omitempty"`
}

// Pair describes the access of GPU From to the memory of GPU To. From and To are CUDA ordinals. A
// property that the driver cannot query is false or 0.
type Pair struct {
	From       int    `json:"from"`
	To         int    `json:"to"`
	HasAccess  bool   `json:"access"`  // kernels on From can access the memory
	HasAtomics bool   `json:"atomics"` // kernels on From can use atomic operations on the memory
	SpeedOrder int    `json:"rank"`    // lower is faster
	NVLink     string `json:"nvlink"`  // whether NVLink connects the GPUs: "yes", "no", or "unknown"
}

// InspectLinks describes the connections between the given GPUs.
func InspectLinks(gpus []GPU) Links {
	l := Links{Pairs: []Pair{}}
	if len(gpus) < 2 {
		return l
	}

	if driver, err := cuda.Load(); err == nil { // InspectDriver reports the error
		l.addPairs(driver, len(gpus))
	}

	if err := l.addNVLinks(gpus); err != nil {
		l.NVMLError = err.Error()
	}

	return l
}

// addPairs adds all pairs, with NVLink "unknown".
func (l *Links) addPairs(driver *cuda.Driver, gpuCount int) {
	for from := range gpuCount {
		device, err := driver.Device(from)
		if err != nil {
			continue
		}

		for to := range gpuCount {
			if to == from {
				continue
			}

			peer, err := driver.Device(to)
			if err != nil {
				continue
			}

			l.Pairs = append(l.Pairs, inspectPair(device, peer))
		}
	}
}

func inspectPair(device, peer cuda.Device) Pair {
	p := Pair{From: device.Ordinal(), To: peer.Ordinal(), NVLink: "unknown"}
	if hasAccess, err := device.CanAccessPeer(peer); err == nil {
		p.HasAccess = hasAccess
	}

	if value, err := device.P2PAttribute(cuda.P2PNativeAtomicSupported, peer); err == nil {
		p.HasAtomics = value != 0
	}

	if value, err := device.P2PAttribute(cuda.P2PPerformanceRank, peer); err == nil {
		p.SpeedOrder = value
	}

	return p
}

// addNVLinks sets ActiveNVLinks, and Pair.NVLink where NVML supports the query.
func (l *Links) addNVLinks(gpus []GPU) error {
	management, err := openNVML()
	if err != nil {
		return err
	}
	defer management.close()
	devices := make([]nvmlDevice, 0, len(gpus)) // indexed by ordinal
	for i := range gpus {
		device, err := management.deviceAt(gpus[i].PCIAddress)
		if err != nil {
			return fmt.Errorf("finding GPU %d: %w", i, err)
		}

		devices = append(devices, device)
	}

	for i := range l.Pairs {
		p := &l.Pairs[i]
		isConnected, err := management.areConnectedByNVLink(devices[p.From], devices[p.To])
		if errors.Is(err, errNVMLUnsupported) {
			continue
		}

		if err != nil {
			return fmt.Errorf("querying the link between GPUs %d and %d: %w", p.From, p.To, err)
		}

		p.NVLink = formatBool(isConnected)
	}

	for _, d := range devices {
		l.ActiveNVLinks = append(l.ActiveNVLinks, management.countActiveNVLinks(d))
	}

	return nil
}

func judgeLinks(f *Facts, s *Section) {
	if len(f.GPUs) < 2 {
		return
	}

	f.Links.judgeAccess(s)
	f.Links.judgeNVLinks(s)
}

func (l *Links) judgeAccess(s *Section) {
	withoutAccess := l.describePairs(func(p *Pair) bool { return !p.HasAccess })
	if len(withoutAccess) == 0 {
		s.addOK("peer access: all %d pairs of GPUs", len(l.Pairs))
		return
	}

	s.add(Warn,
		"see nvidia-smi topo -p2p r; if the GPUs are connected by PCI Express, disable ACS "+
			"on the bridges; in a virtual machine, check the hypervisor's settings",
		"%d of %d pairs of GPUs have no peer access, so groups that include such a pair have "+
			"no windows: %s", len(withoutAccess), len(l.Pairs), joinFirst(withoutAccess))
}

func (l *Links) judgeNVLinks(s *Section) {
	unconnected := l.describePairs(func(p *Pair) bool { return p.NVLink == "no" })
	unknown := l.describePairs(func(p *Pair) bool { return p.NVLink == "unknown" })
	switch {
	case len(unknown) > 0:
		reason := cmp.Or(l.NVMLError, "NVML does not report it")
		s.addOK("NVLink: unknown (%s)", reason)
	case len(unconnected) > 0:
		s.add(Warn, "form groups of ranks whose GPUs are connected by NVLink; see nvidia-smi topo -m",
			"%d of %d pairs of GPUs are not connected by NVLink; NCCL 2.29 and newer have window "+
				"kernels only for groups in which NVLink connects all pairs: %s", len(unconnected),
			len(l.Pairs), joinFirst(unconnected))
	default:
		s.addOK("NVLink: all %d pairs of GPUs; active links on each GPU: %s", len(l.Pairs),
			joinCounts(l.ActiveNVLinks))
	}

	areCountsKnown := len(l.ActiveNVLinks) > 0
	if areCountsKnown && slices.Max(l.ActiveNVLinks) != slices.Min(l.ActiveNVLinks) {
		s.add(Warn, "see nvidia-smi nvlink --status", "the GPUs have different numbers of active "+
			"NVLinks: %s", joinCounts(l.ActiveNVLinks))
	}
}

// describePairs returns a text such as "0 to 1" for each pair that matches.
func (l *Links) describePairs(match func(*Pair) bool) []string {
	var texts []string
	for i := range l.Pairs {
		p := &l.Pairs[i]
		if match(p) {
			texts = append(texts, fmt.Sprintf("%d to %d", p.From, p.To))
		}
	}

	return texts
}

// joinFirst joins at most eight texts. An ellipsis replaces the rest.
func joinFirst(texts []string) string {
	const maxTexts = 8
	if len(texts) > maxTexts {
		return strings.Join(texts[:maxTexts], ", ") + ", ..."
	}

	return strings.Join(texts, ", ")
}

// joinCounts returns a text such as "18 18", or "unknown" if there are no counts.
func joinCounts(counts []int) string {
	if len(counts) == 0 {
		return "unknown"
	}

	withBrackets := fmt.Sprint(counts) // such as [18 18]
	return strings.Trim(withBrackets, "[]")
}
