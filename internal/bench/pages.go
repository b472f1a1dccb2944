package bench

import (
	"fmt"
	"io"

	"symmem/internal/sys"
)

// The reasons for which a fresh segment has no huge pages.
const (
	NoneSetAside = "none-set-aside"
	TooFewFree   = "too-few-free"
)

// Pages says of what pages a fresh segment of 64 MiB is made.
type Pages struct {
	// Bytes is the size of a page: 2 MiB, or 4 KiB for a Reason.
	Bytes int64 `json:"bytes"`
	// Transparent tells that the kernel gives huge pages to shared files by itself.
	Transparent bool `json:"transparent"`
	// SetAside and Free count the pages of 2 MiB that the system has for who asks for them.
	SetAside int `json:"set_aside"`
	Free     int `json:"free"`
	// Policy is the system's for transparent huge pages of shared files.
	Policy string `json:"policy"`
	// Reason is why there are no huge pages: one of the reasons above; Said is what the kernel said.
	Reason string `json:"reason,omitempty"`
	Said   string `json:"said,omitempty"`
}

// lookAtPages tries what a segment tries.
func lookAtPages() (*Pages, error) {
	system := sys.LookAtHugePages()
	p := &Pages{
		Bytes: sys.PageSize, SetAside: system.SetAside, Free: system.Free, Policy: system.Shared,
	}
	f, err := sys.HugeMemfd("symmem-bench", freshBytes)
	switch {
	case err == nil:
		return p, f.Close()
	case system.Transparent():
		p.Transparent = true
		return p, nil
	}
	p.Bytes, p.Reason, p.Said = smallPage, TooFewFree, err.Error()
	if system.SetAside == 0 {
		p.Reason = NoneSetAside
	}
	return p, nil
}

// line writes it for people, below a table.
func (p *Pages) line(w io.Writer) error {
	var err error
	switch {
	case p.Reason != "":
		_, err = fmt.Fprintf(w, "# pages of segments: 4 KiB (%s: %d of %d pages of 2 MiB are free, "+
			"shmem_enabled is %q: %s)\n", p.Reason, p.Free, p.SetAside, p.Policy, p.Said)
	case p.Transparent:
		_, err = fmt.Fprintf(w, "# pages of segments: 2 MiB (shmem_enabled is %q)\n", p.Policy)
	default:
		_, err = fmt.Fprintf(w, "# pages of segments: 2 MiB (%d of %d are free)\n",
			p.Free, p.SetAside)
	}
	if err != nil {
		return fmt.Errorf("writing the table: %w", err)
	}
	return nil
}
