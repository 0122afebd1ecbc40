{{- define "kvasir.fullname" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{/* Argument: a list of the root context and the name of the component. */}}
{{- define "kvasir.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ $root.Chart.Name }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "kvasir.labels" -}}
{{- $root := index . 0 -}}
{{ include "kvasir.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version }}
{{- end }}

{{/* A router sends requests to gateways, which cover both phases. */}}
{{- define "kvasir.podLabels" -}}
{{ include "kvasir.labels" . }}
llm-d.ai/role: {{ if eq (index . 1) "gateway" }}both{{ else }}{{ index . 1 }}{{ end }}
{{- end }}

{{- define "kvasir.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* Pods of one component prefer different nodes. */}}
{{- define "kvasir.affinity" -}}
{{- $values := index . 2 -}}
{{- if $values.affinity -}}
{{ toYaml $values.affinity }}
{{- else -}}
podAntiAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- include "kvasir.selector" . | nindent 12 }}
{{- end }}
{{- end }}

{{- define "kvasir.podSecurity" -}}
runAsNonRoot: true
runAsUser: 1000
runAsGroup: 1000
fsGroup: 1000
seccompProfile: { type: RuntimeDefault }
{{- end }}

{{- define "kvasir.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end }}

{{- define "kvasir.env" -}}
- name: KVASIR_TOKEN
  valueFrom:
    secretKeyRef: { name: {{ .Values.cluster.secret.name }}, key: token }
- name: NATS_TOKEN
  valueFrom:
    secretKeyRef: { name: {{ .Values.cluster.secret.name }}, key: nats-token }
- name: KVASIR_NATS
  value: {{ .Values.cluster.natsUrl | default (printf "nats://$(NATS_TOKEN)@%s-nats:4222" .Release.Name) | quote }}
- name: HF_HOME
  value: /var/lib/kvasir/hub
{{- if .Values.model.hubSecret }}
- name: HF_TOKEN
  valueFrom:
    secretKeyRef: { name: {{ .Values.model.hubSecret }}, key: HF_TOKEN }
{{- end }}
{{- end }}

{{/* Arguments that gateways and instances share. */}}
{{- define "kvasir.clusterArgs" -}}
- --cluster={{ .Values.cluster.name }}
- --nats-replicas={{ .Values.cluster.natsReplicas }}
{{- if .Values.model.source }}
- --model={{ .Values.model.source }}
{{- end }}
{{- end }}

{{- define "kvasir.volumeMounts" -}}
- { name: tmp, mountPath: /tmp }
- { name: state, mountPath: /var/lib/kvasir }
{{- if .Values.model.existingClaim }}
- { name: models, mountPath: {{ .Values.model.mountPath }}, readOnly: true }
{{- end }}
{{- end }}

{{- define "kvasir.volumes" -}}
- { name: tmp, emptyDir: {} }
- { name: state, emptyDir: {} }
{{- if .Values.model.existingClaim }}
- name: models
  persistentVolumeClaim: { claimName: {{ .Values.model.existingClaim }}, readOnly: true }
{{- end }}
{{- end }}

{{/* Fields of the pod that every component sets from its values. */}}
{{- define "kvasir.scheduling" -}}
{{- $root := index . 0 -}}
{{- $values := index . 2 -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  {{- include "kvasir.podSecurity" $root | nindent 2 }}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
affinity:
  {{- include "kvasir.affinity" . | nindent 2 }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The slab for blocks of a volume, in MiB: nine tenths of it, since the file system needs some. Argument: 100Gi or 512Mi. */}}
{{- define "kvasir.ssdSize" -}}
{{- if hasSuffix "Gi" . -}}
{{ mul (trimSuffix "Gi" . | int64) 922 }}m
{{- else if hasSuffix "Mi" . -}}
{{ div (mul (trimSuffix "Mi" . | int64) 9) 10 }}m
{{- else -}}
{{ fail (printf "ssd must be a size in Gi or Mi, got %s" .) }}
{{- end -}}
{{- end }}
