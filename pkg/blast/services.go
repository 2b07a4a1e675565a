package blast

import (
	"fmt"
	"slices"

	"github.com/kubewrite/kube-write-mcp/pkg/plan"
)

// endpoints are the ready pods behind a Service, now and at the worst moment.
type endpoints struct {
	plan.Service
	ready, keeps int
}

// losing gives the Services that have fewer endpoints at the worst moment.
func (t *tally) losing() (out []endpoints) {
	for _, s := range t.in.Facts.Services {
		e := endpoints{Service: s}
		for _, p := range t.pods.in(s.Namespace) {
			if p.Ready && !p.Finished() && s.Selects(p) {
				e.ready++
			}
		}
		e.keeps = e.ready
		for _, o := range t.owners {
			behind := 0
			for _, p := range o.exposed {
				if p.Ready && !p.Finished() && s.Selects(p) {
					behind++
				}
			}
			e.keeps -= min(behind, o.Missing)
		}
		if e.keeps = max(e.keeps, 0); e.keeps < e.ready {
			out = append(out, e)
		}
	}
	return out
}

// sayServices tells which Services lose ready endpoints.
func (t *tally) sayServices() {
	all := t.losing()
	one := !slices.ContainsFunc(all, func(e endpoints) bool { return e.Namespace != all[0].Namespace })
	name := func(e endpoints) string {
		if one {
			return short(e.Name)
		}
		return full(e.Namespace, e.Name)
	}
	var none, fewer []string
	var last, some endpoints
	for _, e := range all {
		if e.keeps == 0 {
			none, last = append(none, name(e)), e
		} else {
			fewer, some = append(fewer, fmt.Sprintf("%s %d of %d", name(e), e.keeps, e.ready)), e
		}
	}
	switch len(none) {
	case 0:
	case 1:
		t.say(outage, "service %s keeps none of %s: an outage", none[0], count(last.ready, "ready endpoint"))
	default:
		t.say(outage, "%d services keep no ready endpoint, an outage: %s", len(none), list(none, ", "))
	}
	switch len(fewer) {
	case 0:
	case 1:
		t.say(extent, "service %s keeps %d of %s", name(some), some.keeps, count(some.ready, "ready endpoint"))
	default:
		t.say(extent, "%d services keep fewer ready endpoints: %s", len(fewer), list(fewer, ", "))
	}
}
