package alloc

import (
	"strings"
	"testing"
)

func TestVerifyNamesWhatIsBroken(t *testing.T) {
	for _, row := range []struct {
		name  string
		spoil func(c *Core, live, free int32)
		want  string
	}{
		{"a block that leaves a gap", func(c *Core, live, _ int32) {
			c.blocks[live].size -= Unit
		}, "want it at"},
		{"a block that runs beyond the segment", func(c *Core, _, free int32) {
			c.blocks[free].size += Unit
		}, "blocks end at"},
		{"a broken link", func(c *Core, _, free int32) { c.blocks[free].prev = 0 }, "previous block"},
		{"free neighbours", func(c *Core, live, _ int32) {
			c.blocks[live].state = Free
		}, "neighbours"},
		{"a pinned free block", func(c *Core, _, free int32) { c.blocks[free].pins = 1 }, "pins"},
		{"a free block in no class", func(c *Core, _, free int32) {
			c.remove(&c.blocks[free])
		}, "is in no class"},
		{"a key of another place", func(c *Core, _, free int32) {
			c.classes[c.blocks[free].class].front += 1 << idBits
		}, "does not match block"},
		{"a bit without its summary", func(c *Core, _, _ int32) { c.homes[0].summary = 0 }, "summary"},
		{"a deferred block in no queue", func(c *Core, live, _ int32) {
			c.blocks[live].state = Deferred
		}, "no queue"},
		{"a wrong counter", func(c *Core, _, _ int32) { c.counts.used += Unit }, "kept"},
		{"a wrong sum of segments", func(c *Core, _, _ int32) { c.mapped += Unit }, "bytes mapped"},
		{"a peak below the present", func(c *Core, _, _ int32) { c.counts.peak = 0 }, "peaks"},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := newCore(t, Default())
			live := int32(demand(t, c, 4096, 0).Handle)
			if err := c.Verify(); err != nil {
				t.Fatal(err)
			}
			row.spoil(c, live, c.blocks[live].next)
			if err := c.Verify(); err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("Verify: %v, want %q", err, row.want)
			}
		})
	}
}
