// Topology assignments as Kueue encodes them, one a line: the golden file that larder-controller's decoder is tested with.
//
//	go run ./topology >../../../controller/tests/golden/kueue/topology.jsonl
package main

import (
	"encoding/json"
	"fmt"
	"math/rand"
	"os"

	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/util/tas"
)

type golden struct {
	Levels  []string                  `json:"levels"`
	Domains [][]string                `json:"domains"`
	Encoded *kueue.TopologyAssignment `json:"encoded"`
}

func main() {
	random := rand.New(rand.NewSource(36))
	lines := json.NewEncoder(os.Stdout)
	write := func(levels []string, domains [][]string) {
		assignment := tas.TopologyAssignment{Levels: levels}
		for _, values := range domains {
			count := int32(1 + random.Intn(2))
			assignment.Domains = append(assignment.Domains, tas.TopologyDomainAssignment{Values: values, Count: count})
		}
		if err := lines.Encode(golden{levels, domains, tas.V1Beta2From(&assignment)}); err != nil {
			panic(err)
		}
	}
	host := []string{"kubernetes.io/hostname"}
	racks := []string{"cloud.example.org/block", "cloud.example.org/rack"}

	// The examples of Kueue's documentation, and names of which one is in the other.
	write(host, [][]string{{"n1"}})
	write(host, [][]string{{"ababa"}, {"aba"}})
	write(host, [][]string{{"a"}, {"aa"}, {"aaa"}})
	write(racks, [][]string{{"block-1", "rack-1"}, {"block-1", "rack-2"}})
	write(racks, [][]string{{"block-1", "rack-1"}})
	// Names of which Kueue stores the starts of some apart, each in a slice of its own.
	for pools := 1; pools <= 4; pools++ {
		var domains [][]string
		for node := range 40 {
			name := fmt.Sprintf("gke-training-pool-%c-7f3b-rack-%d-node-%d", 'a'+node*pools/40, node/8, node)
			domains = append(domains, []string{name})
		}
		write(host, domains)
	}
	for range 60 {
		levels := [][]string{host, racks, append([]string{"zone"}, racks...)}[random.Intn(3)]
		seen := map[string]bool{}
		var domains [][]string
		for range 1 + random.Intn(12) {
			var values []string
			for range levels {
				values = append(values, name(random))
			}
			if key := fmt.Sprint(values); !seen[key] {
				seen[key] = true
				domains = append(domains, values)
			}
		}
		write(levels, domains)
	}
}

// A name with parts that names share, or not.
func name(random *rand.Rand) string {
	parts := []string{"pool-a-", "pool-b-", "node-", "x", "xx", "-gpu"}
	var name string
	for range 1 + random.Intn(3) {
		name += parts[random.Intn(len(parts))]
	}
	return name + fmt.Sprint(random.Intn(20))
}
