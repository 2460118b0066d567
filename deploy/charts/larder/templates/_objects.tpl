{{- /* The objects of `kubectl apply -k deploy`, from the same files: each is read, changed as kustomize and the values change
it, and written again. */}}

{{- /* Renders all objects of a file. Call it with (list $ PATH). */}}
{{- define "larder.file" }}
{{- $root := first . }}
{{- $text := $root.Files.Get (last .) | required (printf "the chart lacks %s" (last .)) }}
{{- range splitList "\n---\n" $text }}
{{- include "larder.object" (list $root (include "larder.paths" (list $root .) | fromYaml)) }}
{{- end }}
{{- end }}

{{- /* The text of a file with the folders of the values. */}}
{{- define "larder.paths" }}
{{- $values := (first .).Values }}
{{- $text := last . | replace "path: /var/lib/larder\n" (printf "path: %s\n" $values.cache.hostPath) }}
{{- $text | replace "/var/lib/kubelet" $values.kubeletDir }}
{{- end }}

{{- /* Renders one object. Call it with (list $ OBJECT). */}}
{{- define "larder.object" }}
{{- $root := first . }}
{{- $object := last . }}
{{- if not $object.kind }}{{ fail (printf "a file of the chart cannot be read: %s" (toJson $object)) }}{{ end }}
{{- $labels := dict "app.kubernetes.io/part-of" "larder" }}
{{- $_ := set $object.metadata "labels" (merge $labels ($object.metadata.labels | default dict)) }}
{{- $namespaced := list "ConfigMap" "DaemonSet" "Deployment" "NetworkPolicy" "Role" "RoleBinding" "Service" "ServiceAccount" }}
{{- if has $object.kind (concat $namespaced (list "PodMonitor" "PrometheusRule")) }}
{{- $_ := set $object.metadata "namespace" $root.Release.Namespace }}
{{- end }}
{{- if has $object.kind (list "DaemonSet" "Deployment") }}
{{- include "larder.workload" (list $root $object) }}
{{- end }}
{{- if eq $object.kind "LarderSettings" }}
{{- range $object.spec.containers }}{{ $_ := set . "image" (include "larder.image" $root) }}{{ end }}
{{- end }}
---
{{ toYaml $object }}
{{ end }}

{{- define "larder.image" }}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end }}

{{- /* Changes a DaemonSet or a Deployment. */}}
{{- define "larder.workload" }}
{{- $root := first . }}
{{- $values := $root.Values }}
{{- $name := (last .).metadata.name }}
{{- $pod := (last .).spec.template.spec }}
{{- if $values.image.pullSecrets }}
{{- $secrets := list }}
{{- range $values.image.pullSecrets }}{{ $secrets = append $secrets (dict "name" .) }}{{ end }}
{{- $_ := set $pod "imagePullSecrets" $secrets }}
{{- end }}
{{- range $pod.containers }}
{{- if eq .image "larder.invalid/larder" }}
{{- $_ := set . "image" (include "larder.image" $root) }}
{{- $_ := set . "imagePullPolicy" $values.image.pullPolicy }}
{{- else }}
{{- $_ := set . "image" $values.scheduler.image }}
{{- end }}
{{- end }}
{{- if has $name (list "larderd" "larder-csi") }}
{{- $_ := set $pod "nodeSelector" (merge (dict) $values.nodeSelector $pod.nodeSelector) }}
{{- $_ := set $pod "tolerations" $values.tolerations }}
{{- include (printf "larder.%s" $name) (list $root $pod) }}
{{- end }}
{{- if and $values.monitoring.enabled (has $name (list "larderd" "larder-controller")) }}
{{- include "larder.metricsToken" $pod }}
{{- end }}
{{- if eq $name "larder-scheduler" }}
{{- range $pod.volumes }}
{{- if .configMap }}{{ $_ := set .configMap "name" (include "larder.schedulerConfig" $root) }}{{ end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "larder.larderd" }}
{{- $root := first . }}
{{- $values := $root.Values }}
{{- $pod := last . }}
{{- $container := first $pod.containers }}
{{- $args := $container.args }}
{{- $env := list }}
{{- if or $values.datasets.enabled $values.sharing.enabled }}
{{- $_ := set $pod "automountServiceAccountToken" true }}
{{- $env = append $env (dict "name" "NODE_NAME" "valueFrom" (dict "fieldRef" (dict "fieldPath" "spec.nodeName"))) }}
{{- end }}
{{- if $values.datasets.enabled }}
{{- $args = append $args "--node-cache=$(NODE_NAME)" }}
{{- end }}
{{- if $values.sharing.enabled }}
{{- $patch := ($root.Files.Get "files/sharing-larderd.yaml" | fromYaml).spec.template.spec }}
{{- $added := first $patch.containers }}
{{- range $added.env }}
{{- if ne .name "NODE_NAME" }}{{ $env = append $env . }}{{ end }}
{{- end }}
{{- $_ := set $container "ports" (concat $container.ports $added.ports) }}
{{- $_ := set $container "volumeMounts" (concat $container.volumeMounts $added.volumeMounts) }}
{{- $_ := set $pod "volumes" (concat $pod.volumes $patch.volumes) }}
{{- $args = concat $args (list "--peers=kubernetes:$(NAMESPACE)/larderd" "--node-name=$(NODE_NAME)" "--peer-listen=0.0.0.0:9466") }}
{{- $args = concat $args (list "--peer-ca=/etc/larder/peers/ca.crt" "--peer-cert=/etc/larder/peers/tls.crt") }}
{{- $args = concat $args (list "--peer-key=/etc/larder/peers/tls.key" "--peer-deny=/etc/larder/peers/denied") }}
{{- end }}
{{- if $values.cache.size }}{{ $args = append $args (printf "--cache-size=%s" $values.cache.size) }}{{ end }}
{{- if $values.cache.keepFree }}{{ $args = append $args (printf "--keep-free=%s" $values.cache.keepFree) }}{{ end }}
{{- $_ := set $container "args" (concat $args $values.larderd.extraArgs) }}
{{- if $env }}{{ $_ := set $container "env" $env }}{{ end }}
{{- if $values.larderd.resources }}{{ $_ := set $container "resources" $values.larderd.resources }}{{ end }}
{{- end }}

{{- /* Gives the first container of a pod the token of scrapers. */}}
{{- define "larder.metricsToken" }}
{{- $container := first .containers }}
{{- $_ := set $container "args" (append $container.args "--metrics-token=/etc/larder/metrics/token") }}
{{- $mount := dict "name" "metrics" "mountPath" "/etc/larder/metrics" "readOnly" true }}
{{- $_ := set $container "volumeMounts" (append ($container.volumeMounts | default list) $mount) }}
{{- $secret := dict "secretName" "larder-metrics" "defaultMode" 0440 }}
{{- $_ := set . "volumes" (append (.volumes | default list) (dict "name" "metrics" "secret" $secret)) }}
{{- /* Gives its group the Secret. */}}
{{- $_ := set .securityContext "fsGroup" .securityContext.runAsGroup }}
{{- end }}

{{- define "larder.larder-csi" }}
{{- $values := (first .).Values }}
{{- $pod := last . }}
{{- $container := first $pod.containers }}
{{- $args := $container.args }}
{{- if $values.datasets.enabled }}
{{- range $pod.volumes }}
{{- if .configMap }}{{ $_ := set .configMap "name" "larder-registry" }}{{ end }}
{{- end }}
{{- end }}
{{- if $values.startupTaint.enabled }}
{{- $args = append $args "--startup-taint" }}
{{- $_ := set $pod "automountServiceAccountToken" true }}
{{- end }}
{{- $_ := set $container "args" (concat $args $values.csi.extraArgs) }}
{{- if $values.csi.resources }}{{ $_ := set $container "resources" $values.csi.resources }}{{ end }}
{{- end }}

{{- /* The name of the scheduler's ConfigMap, which follows from its content: a change rolls the Deployment. */}}
{{- define "larder.schedulerConfig" }}
{{- $files := printf "%s%s" (.Files.Get "files/scheduler/scheduler-config.yaml") (.Files.Get "files/scheduler/extender.yaml") }}
{{- printf "larder-scheduler-config-%s" (sha256sum $files | trunc 10) }}
{{- end }}
